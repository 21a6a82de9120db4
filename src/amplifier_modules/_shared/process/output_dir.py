"""Where tools put output that is too long for a model to read at once.

One folder per session: `tool-output` in the session's folder, else a temporary one that goes with
the session. It is found through a capability, so that the tool that reads files can read there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

CAPABILITY = "tool.output_dir"


def output_dir(coordinator: Any) -> Path:
    """The folder, made on first use, for the user alone. Raises OSError when it cannot be."""
    known = coordinator.get_capability(CAPABILITY)
    if known is not None:
        return Path(known)
    session = coordinator.get_capability("session.dir")
    if session is not None:
        folder = Path(session) / "tool-output"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    else:
        import shutil
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="amplifier-output-"))
        coordinator.register_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    coordinator.register_capability(CAPABILITY, str(folder))
    return folder


def known_output_dir(coordinator: Any) -> str | None:
    """The folder if output may be there, without making it."""
    known = coordinator.get_capability(CAPABILITY)
    if known is None and (session := coordinator.get_capability("session.dir")) is not None:
        known = os.path.join(session, "tool-output")
    return known
