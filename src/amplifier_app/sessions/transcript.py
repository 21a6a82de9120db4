"""The transcript of a session: a journal (`amplifier_support.journal`) with one line per message.

A line is either a message as the context received it, or a control record about earlier ones. A
message without a role is still a message.
"""

import contextlib
import itertools
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from amplifier_app.base.errors import Location, SessionError
from amplifier_app.base.file_writing import open_private
from amplifier_app.base.records import parse_record
from amplifier_support import journal
from amplifier_support.files import on_error, open_regular, system_errors_as
from amplifier_support.named_tuple import NamedTuple


class Reading(NamedTuple):
    """The content of a transcript.

    Attributes:
        messages: The conversation since it was last cleared.
        file: The records in the file.
    """

    messages: list[dict[str, Any]]
    file: journal.Reading = journal.EMPTY


def read_transcript(path: Path) -> Reading:
    """Read the messages in `path`; a missing file has none.

    Raises:
        SessionError: The file cannot be read, or a record other than an incomplete last one is
            invalid.
    """
    with _reported(path):
        try:
            with open(open_regular(path, os.O_RDONLY), "rb") as file:
                content = journal.read(file, parse_record)
        except FileNotFoundError:
            return Reading([])
        return Reading(journal.current_items(content.records, is_message), content)


class SavedRecords:
    """The records of a transcript, read from its file each time they are iterated over.

    Only one of them is in memory. Records that are appended later are left out.

    Args:
        path: The file.
        size: Its bytes to read; by default all.

    Raises:
        SessionError: It cannot be opened; while iterating, a record other than an incomplete last one
            is invalid.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self._path = path
        with self._open() as file:
            self._size = os.fstat(file.fileno()).st_size if size is None else size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for record, _ in self.with_lines())

    def with_lines(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield each record with its line."""
        with _reported(self._path), self._open() as file:
            latest = b""

            def lines() -> Iterator[bytes]:
                nonlocal latest
                left = self._size
                for line in file:
                    latest = line[:left]
                    left -= len(latest)
                    if latest:
                        yield latest

            for number, record in enumerate(journal.Scan(lines()), 1):
                if not is_message(record):
                    journal.current_items([record], is_message, number)
                yield record, latest

    def messages(self) -> Iterator[dict[str, Any]]:
        """The conversation since it was last cleared or replaced."""
        start, kept = 0, list[dict[str, Any]]()
        for number, record in enumerate(self, 1):
            if not is_message(record):
                start, kept = number, journal.current_items([record], is_message)
        yield from kept
        yield from itertools.islice(self, start, None)

    def _open(self) -> BinaryIO:
        with _reported(self._path):
            return open(open_regular(self._path, os.O_RDONLY), "rb")


@contextlib.contextmanager
def _reported(path: Path) -> Generator[None]:
    """Raise SessionError for a file that cannot be read, and for an invalid record."""
    try:
        yield
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error
    except journal.Damaged as error:
        raise SessionError(
            "this record of the transcript is damaged",
            location=Location(str(path), error.line),
            hint="The file is unchanged. Drop what cannot be read, and keep a copy: "
            f"amplifier session verify --repair {path.parent.name}",
        ) from error
    except journal.UnknownControl as error:
        raise SessionError(
            f"the transcript has a record that this version does not support: {error.control!r}",
            location=Location(str(path), error.line),
            hint="Resume the session with the version that wrote it.",
        ) from error


def is_message(record: Any) -> bool:
    """Return True if a record of a transcript is a message, and not about those before it."""
    # A module may have put anything into a list of messages.
    return not isinstance(record, dict) or "role" in record or record.get("control") is None


def is_by_hook(message: Mapping[str, Any]) -> bool:
    """Return True if a hook added the message."""
    metadata = message.get("metadata")
    return isinstance(metadata, dict) and cast("dict[str, Any]", metadata).get("source") == "hook"


def transcript_size(folder: Path) -> int:
    """The bytes of the transcript of the session in a folder; 0 if there is none."""
    try:
        return (folder / "transcript.jsonl").stat().st_size
    except OSError:
        return 0


class TranscriptWriter:
    """Appends to a transcript. There must be only one writer (`SessionLock`).

    Args:
        path: The file; created with mode 0600 if missing.
        reading: Its current content; an incomplete last record is removed.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path = path
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
        self._writer = journal.Writer(descriptor, reading.file)
        self._is_beginning = self.size == 0
        with on_error(self.close), system_errors_as(SessionError, f"cannot write to {path}"):
            self._writer.repair()

    @property
    def size(self) -> int:
        """Total size in bytes of its complete records."""
        return self._writer.size

    def append(self, record: dict[str, Any]) -> None:
        """Append one record; it is on disk when this returns.

        Instructions at the beginning get there with the first other record: before it, nothing is sent.

        Raises:
            SessionError: It cannot be written or is not valid JSON; the file is unchanged.
        """
        self._is_beginning &= record.get("role") in ("system", "developer")
        try:
            self._writer.write(journal.encode(record), durable=not self._is_beginning)
        except journal.NotJSON as error:
            raise SessionError(
                f"cannot save to {self._path}: a message is not valid JSON: {error}",
                hint="Fix the module that produced the message.",
            ) from error
        except OSError as error:
            raise SessionError(
                f"cannot save to {self._path}: {error.strerror}",
                hint="Earlier messages are saved. Free disk space or fix the disk, then resume.",
            ) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._writer.close()
