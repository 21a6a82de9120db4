"""The file of a conversation: one JSON line for each message, only ever appended to.

The first line says what the file is. After it a line is a message exactly as it was added, or is
about those before it: ``{"control": "clear"}``, or ``{"control": "replace", "messages": […]}``.

A line is on disk (`fdatasync`) before the message counts as stored, so all that a crash can leave
is one last line that nobody was told of. That is cut off; other damage is reported and not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
from pathlib import Path
from typing import Any, cast

Message = dict[str, Any]

HEADER: Message = {"format": "amplifier-context", "version": 1}
CLEAR: Message = {"control": "clear"}

# Neither through a link, nor inherited by tools, nor waiting for the other end of a pipe.
_CAREFUL = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))
_LOCKED_BYTE = 1 << 40

_sync_data = getattr(os, "fdatasync", os.fsync)


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
        has_records: Whether it then held any record, were it that all was cleared.
        repaired: Bytes of a torn last record that were cut off.

    Raises:
        JournalError: It is a link, no such file, damaged, or in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[Message] = []
        self.has_records = False
        self.repaired = 0
        self._descriptor = -1
        self._size = 0
        self._unfinished = False
        self._closed = False
        try:
            self._open(os.O_RDWR)
        except FileNotFoundError:
            return
        self._load()

    def append(self, record: Message) -> None:
        """Add a record and return when it is on disk.

        Raises:
            JournalError: The disk refused, or the record is no JSON; the file is as it was before.
        """
        try:
            line = _encoded(record)
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(
                f"Cannot save to {self.path}: a message is no JSON: {error}. The module that made "
                "the message has to be mended."
            ) from error
        if self._closed:
            raise JournalError(f"Cannot save to {self.path}: the session has ended")
        if self._descriptor < 0:
            self._create()
        self._write(line)

    def close(self) -> None:
        """Let go of the file; nothing can be appended any more."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # Opening

    def _open(self, flags: int) -> None:
        """Open and lock the file; `FileNotFoundError` if it is missing."""
        try:
            self._descriptor = os.open(self.path, flags | _CAREFUL, 0o600)
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise OSError(0, "it is no file")
        except FileNotFoundError:
            raise
        except OSError as error:
            self._let_go()
            why = "it is a link" if self.path.is_symlink() else error.strerror
            raise JournalError(
                f"Cannot open {self.path}: {why}. Move it away, or give context-persistent another "
                "'path'."
            ) from error
        if not _locked(self._descriptor):
            self._let_go()
            raise JournalError(
                f"{self.path} is in use by another session. End that one, or put {{session_id}} "
                "into the 'path' of context-persistent, so that each session has its own file."
            )

    def _load(self) -> None:
        try:
            data = _whole(self._descriptor)
            self._read(data)
            if hasattr(os, "fchmod"):
                os.fchmod(self._descriptor, 0o600)
            if self.repaired:
                os.ftruncate(self._descriptor, self._size)
                os.fsync(self._descriptor)
            if self._size == 0:
                self._write(_encoded(HEADER))
            elif data[self._size - 1 : self._size] != b"\n":
                self._write(b"\n")
        except OSError as error:
            self._let_go()
            raise JournalError(f"Cannot read {self.path}: {error.strerror}") from error
        except BaseException:
            self._let_go()
            raise

    def _read(self, data: bytes) -> None:
        """Fill `messages`; nothing is written before all of it is understood."""
        if _encoded(HEADER).startswith(data):  # empty, or a header that was never finished
            self.repaired = len(data) if not data.endswith(b"\n") else 0
            self._size = len(data) - self.repaired
            return
        lines = data.splitlines(keepends=True)
        header = _parsed(lines[0]) or {}
        if header.get("format") != HEADER["format"] or header.get("version") != HEADER["version"]:
            raise JournalError(
                f"{self.path} is no conversation that this version of context-persistent wrote; it "
                "is left as it is. Give another 'path'."
            )
        for number, line in enumerate(lines, 1):
            record = _parsed(line)
            if record is None:
                if _is_torn(lines[number - 1 :]):
                    self.repaired = len(data) - self._size
                    return
                raise self._damaged(number)
            if number > 1:
                self._apply(record, number)
                self.has_records = True
            self._size += len(line)

    def _apply(self, record: Message, number: int) -> None:
        control = record.get("control")
        if "role" in record:
            self.messages.append(record)
        elif control == "clear":
            self.messages.clear()
        elif control == "replace" and _are_messages(record.get("messages")):
            self.messages[:] = record["messages"]
        elif control in ("replace", None):
            raise self._damaged(number)
        else:
            raise JournalError(
                f"{self.path}:{number}: the record {control!r} is of a newer version; resume the "
                "session with the version that wrote it."
            )

    def _damaged(self, number: int) -> JournalError:
        return JournalError(
            f"{self.path}:{number}: this record of the conversation is damaged; the file is left as "
            "it is. Mend or remove the line, then resume again."
        )

    def _create(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._write(_encoded(HEADER))
            _sync_directory(self.path.parent)
        except OSError as error:
            self._let_go()
            raise JournalError(f"Cannot create {self.path}: {error.strerror}") from error

    # Writing

    def _write(self, data: bytes) -> None:
        try:
            if self._unfinished:
                # A signal interrupted the last append, or the disk did not let it be undone.
                os.ftruncate(self._descriptor, self._size)
            self._unfinished = True
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._size + written)
            _sync_data(self._descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise JournalError(
                f"Cannot save to {self.path}: {error.strerror}. Everything before is saved. Make "
                "room or mend the disk, then resume."
            ) from error
        self._size += len(data)
        self._unfinished = False


def replacement(messages: list[Message]) -> Message:
    """The one record that says what the conversation was replaced by: a crash cannot halve it."""
    return {"control": "replace", "messages": messages}


def _encoded(record: Message) -> bytes:
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
        return list(cast("set[object]", value))
    return str(value)


def _parsed(line: bytes) -> Message | None:
    with contextlib.suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            return cast("Message", record)
    return None


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, dict) and "role" in item for item in cast("list[object]", value)
    )


def _is_torn(lines: list[bytes]) -> bool:
    """Whether this is what an interrupted append leaves: one unfinished line, or NUL bytes.

    Never anything with a whole record behind it: each was on disk before the next was begun.
    """
    if len(lines) == 1 and not lines[0].endswith(b"\n"):
        return True
    return any(b"\x00" in line for line in lines) and not any(map(_parsed, lines))


def _whole(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as file:
        return file.read()


def _sync_directory(path: Path) -> None:
    if os.name == "nt":
        return  # Directories cannot be opened there; NTFS journals names by itself.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock, which the system lets go of when its holder dies."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            os.lseek(descriptor, 0, os.SEEK_SET)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
