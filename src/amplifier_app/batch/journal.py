"""Read a journal of any length record by record, and append to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.private_files import open_private
from amplifier_support import journal
from amplifier_support.journal import Reading

Record = dict[str, Any]


def scan(path: Path, each: Callable[[Record], None], start: int = 0) -> Reading:
    """Call a function with every whole record of a file.

    Args:
        path: The file; a missing one is empty.
        each: Gets each record, in order.
        start: The byte to start at, where a record begins.

    Returns:
        What was read, without the records.

    Raises:
        SessionError: A record that is not the torn last one does not parse, or the file cannot be read.
    """
    size, number = start, 0
    try:
        with open(path, "rb") as file:
            file.seek(start)
            for line in file:
                number += 1
                record = journal.parse(line) if line.endswith(b"\n") else None
                if record is None:
                    rest = journal.read(line + file.read())
                    for one in rest.records:
                        each(one)
                    return rest._replace(records=(), size=size + rest.size)
                each(record)
                size += len(line)
    except FileNotFoundError:
        return journal.EMPTY
    except journal.Damaged as error:
        before = path.read_bytes()[:start].count(b"\n")
        raise SessionError(
            f"{path} is damaged at line {before + number - 1 + error.line}",
            hint="Restore the file from a copy, or start the batch in a new folder.",
        ) from error
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error
    return Reading((), size, 0, True)


class Appender:
    """The one writer of a journal, which is created if it is missing.

    Args:
        path: The file.
        reading: What was read of it; a torn end is cut off.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._writer = journal.Writer(open_private(path, os.O_RDWR | os.O_CREAT), reading)
        self._guarded(self._writer.repair)

    @property
    def size(self) -> int:
        """Bytes of whole records."""
        return self._writer.size

    def append(self, record: Record) -> None:
        """Add a record and return when it is on disk.

        Raises:
            SessionError: It cannot be written; the file is as it was before.
        """
        line = journal.encode(record)
        self._guarded(lambda: self._writer.write(line))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._writer.close()

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except OSError as error:
            raise SessionError(
                f"cannot write {self._path}: {error.strerror}",
                hint="Free some space, then continue with: amplifier batch resume FOLDER",
            ) from error
