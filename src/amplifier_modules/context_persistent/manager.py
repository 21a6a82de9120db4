"""A conversation in a file that outlives the session.

The file is a journal (`amplifier_support.journal`). Its first line identifies it. Each line after that is a
message exactly as it was added, or refers to those before it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from amplifier_core import ModuleCoordinator
from amplifier_core.interfaces import Hooks
from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.context.ledger import check
from amplifier_modules._shared.context.manager import CompactingContext, mount_context
from amplifier_modules._shared.module.config import Published, alias_for, ignored
from amplifier_support import journal
from amplifier_support.files import (
    FILE_MODE,
    make_private_folder,
    on_error,
    open_regular,
    sync_folder,
    system_errors_as,
    try_lock,
)
from amplifier_support.journal import CLEAR, Record, replacement
from amplifier_support.session_capabilities import SESSION_DIR, WORKING_DIR

logger = logging.getLogger(__name__)


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
        with system_errors_as(JournalError, f"Cannot create {self.path}"):
            make_private_folder(self.path.parent)
            descriptor = self._open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
            writer = journal.Writer(descriptor)
            with on_error(writer.close):
                writer.write(journal.encode(HEADER))
                sync_folder(self.path.parent)
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


MODULE_ID = "context-persistent"


class PersistentContextConfig(ContextConfig):
    """The config of `context-persistent` in a mount plan.

    Attributes:
        path: Conversation file, instead of `context.jsonl` in the session's folder; relative to
            the session's working directory. `{session_id}` is replaced with the session's id;
            without it, all sessions with this path share one conversation, one session at a time.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **ContextConfig.published,
        "transcript_path": alias_for("path"),
        "memory_files": ignored("use hooks-context-files, which reads AGENTS.md and other files"),
    }

    path: str | None = Field(default=None, min_length=1)


class PersistentContextManager(CompactingContext):
    """Keeps the whole conversation, including system messages, in memory and in a file.

    A message is written to the file before it is added to the conversation. The conversation starts
    with the contents of the file (Context Contract, set_messages).

    Args:
        config: Settings.
        journal: The file; None to keep the conversation in memory only.
        hooks: Where compaction events go; None for nowhere.
        coordinator: The session's coordinator; may be None.
    """

    def __init__(
        self,
        config: PersistentContextConfig,
        journal: Journal | None,
        *,
        hooks: Hooks | None = None,
        coordinator: Any = None,
    ) -> None:
        super().__init__(config, hooks=hooks, coordinator=coordinator)
        self._journal = journal
        self._loaded = journal is not None and journal.has_records
        if journal is not None:
            self._replace(journal.messages)
            journal.messages = []
            if journal.repaired:
                logger.warning(
                    "%s: the last record was incomplete and was dropped (%d bytes)",
                    journal.path,
                    journal.repaired,
                )

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message exactly as received (Context Contract, add_message).

        Raises:
            ValueError: It has no role.
            JournalError: It could not be saved and is not stored.
        """
        check(message)
        with self._ledger.lock:
            if self._journal is not None:
                self._journal.append(message)
            await super().add_message(message)

    async def set_messages(self, messages: Iterable[dict[str, Any]]) -> None:
        """Replace the history, unless it was loaded from the file.

        After `clear()` nothing that was loaded remains, and messages can be set.

        Raises:
            ValueError: A message has no role; nothing is changed.
            JournalError: They could not be saved; nothing is changed.
        """
        history = list(messages)
        if self._loaded:
            self._warn_ignored(history)
            return
        for message in history:
            check(message)
        with self._ledger.lock:
            if self._journal is not None and (history or self._ledger.messages):
                self._journal.append(replacement(history))
            self._replace(history)

    async def clear(self) -> None:
        """Remove all messages; the file keeps the earlier ones (Context Contract, clear).

        Raises:
            JournalError: It could not be saved; nothing is changed.
        """
        with self._ledger.lock:
            if self._journal is not None and self._ledger.messages:
                self._journal.append(CLEAR)
            self._loaded = False
            self._replace([])

    def close(self) -> None:
        """Close the file; nothing can be stored afterwards."""
        if self._journal is not None:
            self._journal.close()

    def _warn_ignored(self, messages: list[dict[str, Any]]) -> None:
        assert self._journal is not None
        stored = self._ledger.messages
        if messages == stored[: len(messages)]:
            logger.debug("Ignoring set_messages: %s holds these messages", self._journal.path)
            return
        known = {_key(message) for message in stored}
        unknown = sum(_key(message) not in known for message in messages)
        level = logging.WARNING if unknown else logging.INFO
        logger.log(
            level,
            "Ignoring %d given messages: the conversation was loaded from %s (%d messages; "
            "%d of those given are not among them). To use the given messages instead, move that "
            "file away.",
            len(messages),
            self._journal.path,
            len(stored),
            unknown,
        )


def _key(message: Any) -> str:
    return json.dumps(message, sort_keys=True, default=str)


FILE_NAME = "context.jsonl"

_SESSION_ID = "{session_id}"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


async def mount(
    coordinator: ModuleCoordinator, settings: PersistentContextConfig
) -> Callable[[], None]:
    """Mount a `PersistentContextManager` with the conversation of its file, if any.

    Args:
        coordinator: Where it is mounted.
        settings: See `config.PersistentContextConfig`.

    Returns:
        Cleanup: close the file.

    Raises:
        JournalError: The file cannot be read or written.
    """
    path = _conversation_file(settings, coordinator)
    journal = None if path is None else Journal(path)
    context = PersistentContextManager(
        settings, journal, hooks=coordinator.hooks, coordinator=coordinator
    )
    stop_listening = await mount_context(coordinator, context, MODULE_ID)

    def cleanup() -> None:
        stop_listening()
        context.close()

    return cleanup


def _conversation_file(config: PersistentContextConfig, coordinator: Any) -> Path | None:
    """The configured file, else one in the session's folder; None without either."""
    if config.path is not None and (
        _SESSION_ID in config.path or getattr(coordinator, "parent_id", None) is None
    ):
        session_id = _NOT_IN_NAMES.sub("_", str(coordinator.session_id))
        path = Path(config.path.replace(_SESSION_ID, session_id)).expanduser()
        working_dir = WORKING_DIR.of(coordinator)
        return Path(working_dir or Path.cwd()) / path
    # A child session has its own conversation and must not continue its parent's.
    folder = SESSION_DIR.of(coordinator)
    if folder is not None:
        return Path(folder) / FILE_NAME
    logger.info(
        "%s: this session is not saved and has no 'path'; its conversation is kept in memory only",
        MODULE_ID,
    )
    return None
