"""The log file and its rotation."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

from amplifier_support.journal import ends_inside_line
from amplifier_support.private_files import make_private_folder, open_locked, open_private

logger = logging.getLogger(__name__)

LOCK_SECONDS = 1.0
_POLL_SECONDS = 0.01


class LogFile:
    """Append whole lines to a file, readable by its owner only and never through a link.

    With a limit the file is rotated before the line that would exceed it: it becomes `NAME.1`, the
    previous `NAME.1` becomes `NAME.2` and so on. No line is split or lost: a writer holds a lock
    or, if the lock is unavailable, does not rotate. A reader continues with the file it has open,
    and finds the rest under the next name.

    Args:
        path: The file.
        max_bytes: The limit; None for none.
        backups: Rotated files to keep.
    """

    def __init__(self, path: Path, max_bytes: int | None, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._file: int | None = None
        self._torn = False
        self._warned = False

    def append(self, line: bytes) -> None:
        """Write a line, including its line end.

        Raises:
            OSError: It cannot be written.
        """
        if self._max_bytes is None:
            self._write(line)
            return
        with self._alone() as alone:
            self._follow()
            if alone and self._is_full(len(line)):
                self._rotate()
            self._write(line)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> None:
        file = self._open_file()
        # Start a new line after one that an earlier write left incomplete.
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            written = os.write(file, rest)
            self._torn = written < len(rest)
            rest = rest[written:]

    def _open_file(self) -> int:
        if self._file is None:
            self._file = _open(self.path)
            self._torn = ends_inside_line(self._file)
        return self._file

    @contextlib.contextmanager
    def _alone(self) -> Any:
        """Keep other processes from writing and rotating; yields False if that fails."""
        lock = None
        with contextlib.ExitStack() as held:
            try:
                make_private_folder(self.path.parent)
                lock = self._wait_for_lock()
                held.callback(os.close, lock)
            except OSError as error:
                reason = error.strerror or error
                self._warn(f"is not rotated, its lock is unavailable: {reason}")
            yield lock is not None

    def _wait_for_lock(self) -> int:
        name = f"{self.path}.lock"
        end = time.monotonic() + LOCK_SECONDS
        while (descriptor := open_locked(name)) is None:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds it", name)
            time.sleep(_POLL_SECONDS)
        return descriptor

    def _follow(self) -> None:
        """Reopen the file if another process has rotated it."""
        if self._file is None:
            return
        try:
            current = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            self.close()
            return
        if not os.path.samestat(current, os.fstat(self._file)):
            self.close()

    def _is_full(self, more: int) -> bool:
        size = os.fstat(self._open_file()).st_size
        return size > 0 and size + more > (self._max_bytes or 0)

    def _rotate(self) -> None:
        # Close it first: some systems do not rename open files.
        self.close()
        try:
            for number in range(self._backups - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
            os.replace(self.path, f"{self.path}.1")
        except OSError as error:
            self._warn(f"cannot be rotated and keeps growing: {error.strerror or error}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("The log %s %s", self.path, what)


def _open(path: Path) -> int:
    """Open for appending, without following a link and without waiting for a reader of a pipe.

    Raises:
        OSError: It cannot be opened, or is not a regular file.
    """
    make_private_folder(path.parent)
    return open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
