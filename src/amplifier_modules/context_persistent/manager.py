"""The conversation in a file that outlives the session."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from amplifier_core.interfaces import Hooks
from amplifier_modules._shared.context.ledger import check
from amplifier_modules._shared.context.manager import CompactingContext
from amplifier_modules.context_persistent.config import PersistentContextConfig
from amplifier_modules.context_persistent.journal import Journal
from amplifier_support.journal import CLEAR, replacement

logger = logging.getLogger(__name__)


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
        given = list(messages)
        if self._loaded:
            self._warn_ignored(given)
            return
        for message in given:
            check(message)
        with self._ledger.lock:
            if self._journal is not None and (given or self._ledger.messages):
                self._journal.append(replacement(given))
            self._replace(given)

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

    def _warn_ignored(self, given: list[dict[str, Any]]) -> None:
        assert self._journal is not None
        stored = self._ledger.messages
        if given == stored[: len(given)]:
            logger.debug("Ignoring set_messages: %s holds these messages", self._journal.path)
            return
        known = {_key(message) for message in stored}
        unknown = sum(_key(message) not in known for message in given)
        level = logging.WARNING if unknown else logging.INFO
        logger.log(
            level,
            "Ignoring %d given messages: the conversation was loaded from %s (%d messages; "
            "%d of those given are not among them). To use the given messages instead, move that "
            "file away.",
            len(given),
            self._journal.path,
            len(stored),
            unknown,
        )


def _key(message: Any) -> str:
    return json.dumps(message, sort_keys=True, default=str)
