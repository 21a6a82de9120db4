"""The transcript of a session: one JSON line for each message, only ever appended to.

A message is acknowledged once its line is on disk (`fdatasync`). What a crash can
leave behind is therefore at most one line nobody was told about, torn or filled
with NUL bytes; opening the file again takes it away. Anything else that does not
parse is damage, which is reported and not touched.

A line is the message itself, as the context received it. A line with the key
``control`` instead of a role is about the messages before it: ``{"control":
"clear"}`` says that the conversation started anew there, ``{"control":
"replace", "messages": […]}`` that it went on as these messages.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.errors import Location, SessionError
from amplifier_app.base.private_files import open_private, sync_directory

CLEAR = {"control": "clear"}


def replacement(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The one record that says what the conversation was replaced by.

    One, because a crash between several would leave a conversation nobody ever had.
    """
    return {"control": "replace", "messages": messages}


class Reading(NamedTuple):
    """What a transcript holds.

    Attributes:
        messages: The conversation since it was last cleared.
        size: Bytes of whole records; whatever is behind them is torn.
        torn: Bytes behind the last whole record.
        ends_line: Whether the last record has its line feed.
    """

    messages: list[dict[str, Any]]
    size: int
    torn: int
    ends_line: bool


def read_transcript(path: Path) -> Reading:
    """The messages in `path`; a missing file holds none.

    Raises:
        SessionError: A record that is not the torn last one does not parse, or the file
            cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Reading([], 0, 0, True)
    except OSError as error:
        raise SessionError(f"Cannot read {path}: {error.strerror}") from error
    messages: list[dict[str, Any]] = []
    size, ends_line = 0, True
    for number, line, end in _lines(data):
        record = _parse(line)
        if record is None:
            if _is_torn(data[size:]):
                break
            raise SessionError(
                "this record of the transcript is damaged",
                location=Location(str(path), number),
                hint="The file is left as it is. Mend or remove the line, then resume again.",
            )
        _apply(record, messages, path, number)
        size, ends_line = end, data[end - 1 : end] == b"\n"
    return Reading(messages, size, len(data) - size, ends_line)


def _apply(record: dict[str, Any], messages: list[dict[str, Any]], path: Path, line: int) -> None:
    control = None if "role" in record else record.get("control")
    if control is None:
        messages.append(record)
    elif control == "clear":
        messages.clear()
    elif control == "replace":
        messages[:] = record["messages"]
    else:
        raise SessionError(
            f"the transcript has a record this version does not know: {control!r}",
            location=Location(str(path), line),
            hint="Resume the session with the version that wrote it.",
        )


def _lines(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Number, bytes without line feed, and end offset of each line."""
    start, number = 0, 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end + 1
        yield number, data[start : stop if end < 0 else end], stop
        start = stop


def _parse(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    return None


def _is_torn(tail: bytes) -> bool:
    """Whether `tail`, from its first bad record on, is what an interrupted append leaves.

    That is one unfinished line, or blocks of NUL bytes; never anything with a whole record
    behind it, because each record was on disk before the next was begun.
    """
    if b"\n" not in tail:
        return True
    return b"\x00" in tail and all(_parse(line) is None for _, line, _ in _lines(tail))


class TranscriptWriter:
    """Appends to a transcript. There must be one writer only (`SessionLock`).

    Args:
        path: The file; created 0600 when missing.
        reading: What was read of it; a torn tail is cut off.

    Attributes:
        size: Bytes of its whole records.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        self.size = reading.size
        self._unfinished = False
        self._descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
        try:
            if reading.torn:
                os.ftruncate(self._descriptor, reading.size)
                os.fsync(self._descriptor)
            if not reading.ends_line:
                self._write(b"\n")
            elif not reading.size:
                sync_directory(path.parent)
        except OSError as error:
            self.close()
            raise SessionError(f"Cannot write to {path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        """Add one record and return when it is on disk.

        Raises:
            SessionError: The disk refused, or the record is no JSON; the file is as it was before.
        """
        try:
            line = encode(record)
        except (TypeError, ValueError, RecursionError) as error:
            raise SessionError(
                f"Cannot save to {self._path}: a message is no JSON: {error}",
                hint="The module that made the message has to be mended.",
            ) from error
        self._write(line)

    def _write(self, data: bytes) -> None:
        try:
            if self._unfinished:
                # A signal interrupted the last append, or the disk did not let it be undone.
                os.ftruncate(self._descriptor, self.size)
            self._unfinished = True
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.size + written)
            _sync_data(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise SessionError(
                f"Cannot save to {self._path}: {error.strerror}",
                hint="Everything before is saved. Make room or mend the disk, then resume.",
            ) from error
        self.size += len(data)
        self._unfinished = False

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_sync_data = getattr(os, "fdatasync", os.fsync)


def encode(record: dict[str, Any]) -> bytes:
    """One line of JSON, ASCII only, so that any text (lone surrogates too) survives."""
    return json.dumps(record, default=_plain, separators=(",", ":")).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """What JSON does not know, as data: models and dataclasses as their fields, the rest as text."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    return str(value)
