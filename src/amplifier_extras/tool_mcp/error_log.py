"""What servers write in addition to messages: logged to a file without secrets, never shown."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from amplifier_support.private_files import open_private_in
from amplifier_support.redaction import Redactor

logger = logging.getLogger(__name__)

_MOST = 5_000_000
_TAIL = 2000


class ErrorLog:
    """The log of one server.

    Args:
        folder: Returns the folder of the log, when there is something to write.
        name: Name of the file.
        redactor: Removes secrets.
    """

    def __init__(self, folder: Callable[[], Path], name: str, redactor: Redactor) -> None:
        self._folder = folder
        self._name = name
        self._redactor = redactor
        self._unwritten = b""
        self._tail = ""
        self._written = 0
        self._file: int | None = None
        self._is_ending = False

    def feed(self, data: bytes) -> None:
        """Add the next piece. Never raises: an unwritable log is reported once."""
        *lines, self._unwritten = (self._unwritten + data).split(b"\n")
        if len(self._unwritten) > 64 * 1024:
            lines.append(self._unwritten)
            self._unwritten = b""
        if lines:
            self._write("".join(f"{line.decode('utf-8', 'replace')}\n" for line in lines))

    def last_words(self) -> str:
        """The end of what it wrote, on one line."""
        text = self._tail + self._redactor.text(self._unwritten.decode("utf-8", "replace"))
        return " | ".join(line.strip() for line in text.splitlines()[-5:] if line.strip())[-500:]

    def clear_last_words(self) -> None:
        """Forget the last words: those of an earlier run explain nothing."""
        self._tail = ""

    def stop_creating(self) -> None:
        """Create no file from now on: the session is ending, and its folder may be gone."""
        self._is_ending = True

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._unwritten:
            self.feed(b"\n")
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, text: str) -> None:
        text = self._redactor.text(text)
        self._tail = (self._tail + text)[-_TAIL:]
        data = text.encode("utf-8", "replace")[: _MOST - self._written]
        if not data or (self._file is None and self._is_ending):
            return
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = open_private_in(self._folder(), self._name, flags)
            os.write(self._file, data)
            self._written += len(data)
        except OSError as error:
            self._written = _MOST
            logger.warning("cannot write the log %s of an MCP server: %s", self._name, error)
