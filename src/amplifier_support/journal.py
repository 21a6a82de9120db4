"""A file of JSON lines that is only ever appended to, and loses nothing it acknowledged.

A record is acknowledged once its line is on disk (`fdatasync`). What a crash can leave behind is
therefore at most one record at the end that was never acknowledged, torn or filled with NUL bytes;
the next writer cuts it off. Anything else that does not parse is damage, which is reported and not
touched.

A record is an item, or is about those before it: ``{"control": "clear"}`` removes them,
``{"control": "replace", "messages": […]}`` puts these in their place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from amplifier_support.files import open_private_in
from amplifier_support.named_tuple import NamedTuple

Record = dict[str, Any]

CLEAR: Record = {"control": "clear"}

_sync_data = getattr(os, "fdatasync", os.fsync)


def replacement(items: list[Record]) -> Record:
    """The record that replaces all items before it.

    One record, because a crash between several would leave a state that never existed.
    """
    return {"control": "replace", "messages": items}


class NotJSON(ValueError):
    """The record cannot be written as JSON."""


class Damaged(ValueError):
    """A record that is not the torn last one cannot be read.

    Attributes:
        line: Its number, from 1.
    """

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} is damaged")
        self.line = line


class UnknownControl(ValueError):
    """A record is of a newer version.

    Attributes:
        line: Its number, from 1.
        control: What it asks for.
    """

    def __init__(self, line: int, control: object) -> None:
        super().__init__(f"line {line} has the unknown control {control!r}")
        self.line = line
        self.control = control


# -- reading -----------------------------------------------------------------------------


class Reading(NamedTuple):
    """The contents of a journal.

    Attributes:
        records: Its records, one for each line.
        size: Bytes of whole records; the bytes after them are torn.
        torn: Bytes after the last whole record.
        ends_line: Whether the last record has its line feed.
    """

    records: Sequence[Record]
    size: int
    torn: int
    ends_line: bool


EMPTY = Reading((), 0, 0, True)


_decode = json.JSONDecoder().raw_decode
_WHITE_SPACE = " \t\n\r"


def parse(line: bytes) -> Record | None:
    """The record of a line; None if it has none."""
    # Once per message of a conversation: `json.loads` would look for an encoding and skip white space
    # twice, which takes longer than most records.
    try:
        text = line.decode("utf-8", "surrogatepass").strip(_WHITE_SPACE)
        record, end = _decode(text)
    except (ValueError, RecursionError):
        return None
    return cast("Record", record) if isinstance(record, dict) and end == len(text) else None


class Scan:
    """Reads the records in the lines of a journal one by one; only one of them is in memory.

    Args:
        lines: The lines with their line feeds, such as an open file.
        parse: Returns the record of a line.

    Attributes:
        size: Bytes of the whole records so far.
        torn: Bytes after the last whole record; known at the end.
        ends_line: Whether the last record has its line feed.
    """

    def __init__(
        self, lines: Iterable[bytes], parse: Callable[[bytes], Record | None] = parse
    ) -> None:
        self._lines = iter(lines)
        self._parse = parse
        self.size = 0
        self.torn = 0
        self.ends_line = True

    def __iter__(self) -> Iterator[Record]:
        """Yield the records. Raises `Damaged`."""
        for number, line in enumerate(self._lines, 1):
            record = self._parse(line)
            if record is None:
                self.torn = len(line)
                if not self._is_torn(line):
                    raise Damaged(number)
                return
            self.size += len(line)
            # The last record is whole even if only its line feed is missing.
            self.ends_line = line.endswith(b"\n")
            yield record

    def _is_torn(self, line: bytes) -> bool:
        """Return True if an invalid line and those after it are what an interrupted append leaves.

        That is one unfinished line, or blocks of NUL bytes; never anything that is followed by a whole
        record, because each record was on disk before the next was begun, or is brought there with it.
        """
        has_nul, finished = b"\x00" in line, line.endswith(b"\n")
        for later in self._lines:
            self.torn += len(later)
            if self._parse(later):
                return False
            has_nul = has_nul or b"\x00" in later
        return has_nul or not finished


def read(source: bytes | BinaryIO, parse: Callable[[bytes], Record | None] = parse) -> Reading:
    """The records in the content of a journal, or in a file from its position to its end.

    Args:
        source: The content or the file.
        parse: Returns the record of a line.

    Raises:
        Damaged: A record that is not the torn last one does not parse.
        OSError: The file cannot be read.
    """
    scan = Scan(io.BytesIO(source) if isinstance(source, bytes) else source, parse)
    records = list(scan)
    return Reading(records, scan.size, scan.torn, scan.ends_line)


def current_items(
    records: Iterable[Record], is_item: Callable[[object], bool], first_line: int = 1
) -> list[Record]:
    """The items that are left after every record.

    Args:
        records: The records of a journal.
        is_item: Whether a record is an item.
        first_line: The number of the first record's line.

    Raises:
        Damaged: A record is neither an item nor about items.
        UnknownControl: A record is of a newer version.
    """
    items: list[Record] = []
    for line, record in enumerate(records, first_line):
        control = record.get("control")
        if is_item(record):
            items.append(record)
        elif control == "clear":
            items.clear()
        elif control == "replace":
            messages = record.get("messages")
            if not isinstance(messages, list) or not all(map(is_item, cast("list[Any]", messages))):
                raise Damaged(line)
            items[:] = messages
        elif control is None:
            raise Damaged(line)
        else:
            raise UnknownControl(line, control)
    return items


def readable_records(data: bytes) -> list[Record]:
    """The records in lines of JSON, for readers that can do without the lines that have none."""
    return [record for line in data.split(b"\n") if (record := parse(line)) is not None]


def ends_inside_line(descriptor: int) -> bool:
    """Return True if an earlier write left the last line of a file unfinished."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


# -- writing -----------------------------------------------------------------------------


class Writer:
    """Appends to the open file of a journal; there must be one writer only.

    Args:
        descriptor: The file, open for writing; closed by `close`.
        reading: What was read of it.

    Attributes:
        descriptor: The file; -1 when closed.
        size: Bytes of its whole records.
    """

    def __init__(self, descriptor: int, reading: Reading = EMPTY) -> None:
        self.descriptor = descriptor
        self.size = reading.size
        self._torn = reading.torn
        self._ends_line = reading.ends_line
        self._unfinished = False
        self._unsynced = False

    def repair(self) -> None:
        """Cut off the torn end, and finish the last line. Raises OSError."""
        if self._torn:
            os.ftruncate(self.descriptor, self.size)
            os.fsync(self.descriptor)
            self._torn = 0
        if not self._ends_line:
            self.write(b"\n")
            self._ends_line = True

    def write(self, line: bytes, *, durable: bool = True) -> None:
        """Add an encoded record and return when it is on disk; if not `durable`, the next one or `sync` brings it there.

        Raises:
            OSError: The system refused; the file is as it was before.
        """
        try:
            if self._unfinished:
                # A signal interrupted the last append, or the disk did not let it be undone.
                os.ftruncate(self.descriptor, self.size)
            self._unfinished = True
            written = 0
            while written < len(line):
                written += os.pwrite(self.descriptor, line[written:], self.size + written)
            if durable:
                _sync_data(self.descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(line)
        self._unfinished, self._unsynced = False, not durable

    def sync(self) -> None:
        """Return when every record is on disk. Raises OSError."""
        if self._unsynced:
            _sync_data(self.descriptor)
            self._unsynced = False

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def append(folder: Path, name: str, record: Record, *, durable: bool = True) -> None:
    """Add a record to a journal that other processes may add to as well.

    Args:
        folder: The folder of the journal.
        name: Its name.
        record: The record.
        durable: Return when it is on disk.

    Raises:
        OSError: The system refused.
        NotJSON: See `encode`.
    """
    descriptor = open_private_in(folder, name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        # A process that was killed may have left half a line.
        start = b"\n" if ends_inside_line(descriptor) else b""
        os.write(descriptor, start + encode(record))
        if durable:
            _sync_data(descriptor)
    finally:
        os.close(descriptor)


def encode(record: Record) -> bytes:
    """One line of JSON, ASCII only, so that any text (lone surrogates too) survives.

    Raises:
        NotJSON: The record refers to itself, or has keys that JSON does not have.
    """
    try:
        try:
            text = json.dumps(record, default=_as_data, separators=(",", ":"), allow_nan=False)
        except ValueError:
            text = json.dumps(finite_data(record, default=_as_data), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJSON(str(error)) from error
    return text.encode("ascii") + b"\n"


def finite_data(value: Any, default: Callable[[Any], Any]) -> Any:
    """Return the value as JSON data with text, such as "inf", for numbers that JSON lacks.

    Raises:
        TypeError, ValueError, RecursionError: It refers to itself, or has keys that JSON does not have.
    """
    return json.loads(
        json.dumps(value, default=default), parse_constant=lambda name: str(float(name))
    )


def _as_data(value: Any) -> Any:
    """Values that JSON does not have, as data: models and dataclasses as their fields, others as text."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return list(cast("set[object]", value))
    return str(value)
