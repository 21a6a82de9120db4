"""Finds links that point outside their folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def links_out(root: Path) -> Iterator[str]:
    """The links below `root` that point outside it, as relative paths; none is followed."""
    real = root.resolve()
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink() and not _target(path).is_relative_to(real):
                yield path.relative_to(root).as_posix()


def _target(link: Path) -> Path:
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        # A link cycle has no target, so none inside either.
        return Path(link.anchor)
