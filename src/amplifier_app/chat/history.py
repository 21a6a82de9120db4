"""The history of prompts, per project."""

from __future__ import annotations

import hashlib
import logging
import os

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError, Terminated
from amplifier_app.base.file_writing import make_private_folder, open_private
from amplifier_app.base.redact import redact


class _PrivateHistory(FileHistory):
    """A history whose file has no secrets; what was typed in this chat is recalled as it was."""

    def store_string(self, string: str) -> None:
        super().store_string(redact(string))


def _is_no_signal(record: logging.LogRecord) -> bool:
    """Return True if reading the history has failed, not been ended by a signal."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (KeyboardInterrupt, Terminated))


def project_history(project: str) -> tuple[History, str | None]:
    """Return the prompt history of a directory, in a file that only its owner can read.

    Returns:
        The history, and why it is not saved; None if it is.
    """
    logging.getLogger("prompt_toolkit.buffer").addFilter(_is_no_signal)
    name = hashlib.sha256(project.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = paths.state_dir() / "history" / name
    try:
        make_private_folder(path.parent)
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    except SessionError as error:
        return InMemoryHistory(), error.message
    return _PrivateHistory(path), None
