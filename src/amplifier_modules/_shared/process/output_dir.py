"""Where tools put output that is too long for a model to read at once.

One folder per session: `tool-output` in the session's folder, else a temporary one that goes with
the session. It is found through a capability, so that the tool that reads files can read there.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from amplifier_support.private_files import make_private_folder, temporary_folder
from amplifier_support.session_capabilities import SESSION_DIR, TOOL_OUTPUT_DIR


def output_dir(coordinator: Any) -> Path:
    """The folder, created on first use and private to the user. Raises OSError if that fails."""
    known = TOOL_OUTPUT_DIR.of(coordinator)
    if known is not None:
        return Path(known)
    session = SESSION_DIR.of(coordinator)
    if session is not None:
        folder = Path(session) / "tool-output"
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(folder))
        make_private_folder(folder)
    else:
        folder = Path(tempfile.mkdtemp(prefix="amplifier-output-", dir=temporary_folder()))
        coordinator.register_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    TOOL_OUTPUT_DIR.register(coordinator, str(folder))
    return folder


def known_output_dir(coordinator: Any) -> str | None:
    """The folder if there may be output in it; it is not created."""
    known = TOOL_OUTPUT_DIR.of(coordinator)
    if known is None and (session := SESSION_DIR.of(coordinator)) is not None:
        known = os.path.join(session, "tool-output")
    return known
