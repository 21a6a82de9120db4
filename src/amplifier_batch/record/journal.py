"""Read a journal of any length record by record, and append to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import open_private
from amplifier_app.base.records import parse_record
from amplifier_support import journal
from amplifier_support.files import open_to_read, system_errors_as
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
    number = 0
    try:
        with open(open_to_read(path), "rb") as file:
            file.seek(start)
            records = journal.Scan(file, journal.parse if start else parse_record)
            for record in records:
                number += 1
                each(record)
    except FileNotFoundError:
        return journal.EMPTY
    except journal.Damaged as error:
        raise damage_error(path, _lines_before(path, start) + error.line) from error
    # A record of another program, or one that was edited.
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise damage_error(path, _lines_before(path, start) + number) from error
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error
    return Reading((), start + records.size, records.torn, records.ends_line)


def damage_error(path: Path, line: int) -> SessionError:
    """The error for a file with a damaged line."""
    return SessionError(
        f"{path} is damaged at line {line}",
        hint="Restore the file from a copy, or start the batch in a new folder.",
    )


def check_lines(path: Path, size: int, expected: int) -> None:
    """Check that the first `size` bytes of a file are this many lines.

    Raises:
        SessionError: They are not, or cannot be read.
    """
    count, block = 0, b"\n"
    with (
        system_errors_as(SessionError, f"cannot read {path}"),
        contextlib.suppress(FileNotFoundError),
        open(open_to_read(path), "rb") as file,
    ):
        while size and (block := file.read(min(size, 1 << 20))):
            size -= len(block)
            count += block.count(b"\n")
    if size or count != expected or not block.endswith(b"\n"):
        raise change_error(path, count, expected)


def change_error(path: Path, count: int, expected: int) -> SessionError:
    """The error for a file that has more or fewer lines than were written."""
    return SessionError(
        f"{path} was changed by another program: expected {expected} lines, found {count}",
        hint="Restore the file from a copy, or start the batch in a new folder.",
    )


def _lines_before(path: Path, start: int) -> int:
    return path.read_bytes()[:start].count(b"\n")


class Appender:
    """The one writer of a journal, which is created if it is missing.

    Args:
        path: The file.
        reading: What was read of it; a torn end is cut off.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self._writer = journal.Writer(open_private(path, os.O_RDWR | os.O_CREAT), reading)
        with self._errors():
            self._writer.repair()

    @property
    def size(self) -> int:
        """Bytes of whole records."""
        return self._writer.size

    def append(self, record: Record, *, durable: bool = True) -> None:
        """Add a record and return when it is on disk; if not `durable`, the next one brings it there.

        Raises:
            SessionError: It cannot be written; the file is as it was before.
        """
        line = journal.encode(record)
        with self._errors():
            self._writer.write(line, durable=durable)

    def sync(self) -> None:
        """Return when every record is on disk. Raises SessionError."""
        with self._errors():
            self._writer.sync()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._writer.close()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        hint = f"Free some space, then continue with: amplifier batch resume {self._path.parent}"
        return system_errors_as(SessionError, f"cannot write {self._path}", hint=hint)
