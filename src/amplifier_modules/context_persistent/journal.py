"""The file of a conversation: a journal (`amplifier_support.journal`) with one line for each message.

The first line says what the file is. After it a line is a message exactly as it was added, or is
about those before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from amplifier_support import journal
from amplifier_support.journal import Record
from amplifier_support.private_files import (
    FILE_MODE,
    make_private_folder,
    open_regular,
    sync_folder,
    try_lock,
)

HEADER: Record = {"format": "amplifier-context", "version": 1}


class JournalError(RuntimeError):
    """The file cannot be used; the message says why and what to do."""


class Journal:
    """The file of one conversation, held by this object alone until `close`.

    A file that is missing is created, 0600, with the first record.

    Args:
        path: The file.

    Attributes:
        path: The file.
        messages: What it held when it was opened.
        has_records: Whether it then held any record, even if all was cleared.
        repaired: Bytes of a torn last record that were cut off.

    Raises:
        JournalError: It is a link, not a file, damaged, or in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[Record] = []
        self.has_records = False
        self.repaired = 0
        self._writer: journal.Writer | None = None
        self._closed = False
        try:
            descriptor = self._open(os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            self._writer = self._load(descriptor)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise JournalError(f"Cannot read {path}: {error.strerror}") from error
            raise

    def append(self, record: Record) -> None:
        """Add a record and return when it is on disk.

        Raises:
            JournalError: The disk refused, or the record is not JSON; the file is as it was before.
        """
        try:
            line = journal.encode(record)
        except journal.NotJSON as error:
            raise JournalError(
                f"Cannot save to {self.path}: a message is not valid JSON: {error}. The module that made "
                "the message has to be fixed."
            ) from error
        if self._closed:
            raise JournalError(f"Cannot save to {self.path}: the session has ended")
        if self._writer is None:
            self._writer = self._create()
        try:
            self._writer.write(line)
        except OSError as error:
            raise JournalError(
                f"Cannot save to {self.path}: {error.strerror}. Everything before is saved. Make "
                "room or fix the disk, then resume."
            ) from error

    def close(self) -> None:
        """Close the file; nothing can be appended any more."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self, flags: int) -> int:
        """Open and lock the file; `FileNotFoundError` if it is missing."""
        descriptor, is_locked = -1, False
        try:
            descriptor = open_regular(self.path, flags)
            is_locked = try_lock(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(
                f"Cannot open {self.path}: {error.strerror}. Move it away, or give "
                "context-persistent another 'path'."
            ) from error
        finally:
            if descriptor >= 0 and not is_locked:
                os.close(descriptor)
        if not is_locked:
            raise JournalError(
                f"{self.path} is in use by another session. End that one, or put {{session_id}} "
                "into the 'path' of context-persistent, so that each session has its own file."
            )
        return descriptor

    def _create(self) -> journal.Writer:
        try:
            make_private_folder(self.path.parent)
            descriptor = self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
            writer = journal.Writer(descriptor)
            try:
                writer.write(journal.encode(HEADER))
                sync_folder(self.path.parent)
            except BaseException:
                writer.close()
                raise
        except OSError as error:
            raise JournalError(f"Cannot create {self.path}: {error.strerror}") from error
        return writer

    def _load(self, descriptor: int) -> journal.Writer:
        """Fill `messages`; nothing is written before all of it is understood."""
        with open(os.dup(descriptor), "rb") as file:
            reading = self._read(file.read())
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE_MODE)
        self.repaired = reading.torn
        writer = journal.Writer(descriptor, reading)
        writer.repair()
        if reading.size == 0:
            writer.write(journal.encode(HEADER))
        return writer

    def _read(self, data: bytes) -> journal.Reading:
        header = journal.encode(HEADER)
        if len(data) < len(header) - 1 and header.startswith(data):
            # Empty, or the header was never finished.
            return journal.EMPTY._replace(torn=len(data))
        first = journal.parse(data.split(b"\n", 1)[0]) or {}
        if any(first.get(key) != value for key, value in HEADER.items()):
            raise JournalError(
                f"{self.path} is not a conversation written by this version of context-persistent; it "
                "is left as it is. Give another 'path'."
            )
        try:
            reading = journal.read(data)
            records = reading.records[1:]
            self.messages = journal.current_items(records, _is_message, first_line=2)
        except journal.Damaged as error:
            raise JournalError(
                f"{self.path}:{error.line}: this record of the conversation is damaged; the file is "
                "left as it is. Fix or remove the line, then resume again."
            ) from error
        except journal.UnknownControl as error:
            raise JournalError(
                f"{self.path}:{error.line}: the record {error.control!r} is of a newer version; "
                "resume the session with the version that wrote it."
            ) from error
        self.has_records = bool(records)
        return reading


def _is_message(record: Any) -> bool:
    return isinstance(record, dict) and "role" in record
