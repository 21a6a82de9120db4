"""The limit on open files, which batches need more of than other commands."""

from __future__ import annotations

import contextlib
import sys

if sys.platform != "win32":
    import resource

_MAX_FILES = 1 << 16


def allow_many_files() -> None:
    """Raise the limit on open files of this process as far as it may."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        # macOS names no hard limit and still has one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
