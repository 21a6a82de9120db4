"""What every bundled context does: five methods of the contract, compaction, token counts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from amplifier_core.events import CONTEXT_POST_COMPACT, CONTEXT_PRE_COMPACT
from amplifier_core.interfaces import Hooks
from amplifier_modules._shared.tokens import Calibration, reported_input

from .compaction import STRATEGIES, CompactionResult, Limits, View
from .config import ContextConfig
from .ledger import Ledger, check

logger = logging.getLogger(__name__)

SAFETY_MARGIN = 1000
"""Tokens left free beside a provider's answer (Context Contract, get_messages_for_request)."""

_FILL = 0.6
"""Share of the room that older messages may fill when a view is made."""

_OUTGROWN = 1.5
"""A view is made anew when the room is this many times what it was made for."""


class CompactingContext:
    """Keeps the conversation in memory and hands out views that fit a budget.

    Messages are stored exactly as received and never changed; the lists that are returned are
    copies. A view is reused while it fits, so a request costs what is new since the last one.

    Args:
        config: Settings.
        hooks: Where compaction events go; None for nowhere.
    """

    def __init__(self, config: ContextConfig, *, hooks: Hooks | None = None) -> None:
        self.config = config
        self._hooks = hooks
        self._ledger = Ledger()
        self._calibration = Calibration()
        self._view: View | None = None
        self._budget = self.config.max_tokens
        self._pending: int | None = None
        self._announcing = False

    # --- the contract -----------------------------------------------------------------------

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message exactly as received (Context Contract, add_message).

        Raises:
            ValueError: It has no role.
        """
        self._ledger.add(message)
        if message["role"] == "assistant":
            metadata = message.get("metadata")
            if isinstance(metadata, Mapping):
                self._learn(metadata.get("usage"))

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Messages for a request, compacted if they fill more than the threshold of the budget.

        Args:
            token_budget: Explicit budget in tokens; wins.
            provider: Provider whose `get_info().defaults` give the budget as context window minus
                output minus a margin of 1,000.

        Returns:
            A new list of stored messages, in order; a message too big for the budget is replaced
            by a shortened copy.
        """
        self._budget = self._budget_of(token_budget, provider)
        with self._ledger.lock:
            current = self._current()
            if current is not None:
                return current
        await self._compact(provider)
        with self._ledger.lock:
            # Messages that came while the events were handled belong to the request.
            view = self._view
            if view is None:
                return self._hand_out(self._ledger.messages, self._ledger.tokens)
            view.follow(self._ledger)
            return self._hand_out(view.messages, view.tokens)

    async def get_messages(self) -> list[dict[str, Any]]:
        """All messages, uncompacted (Context Contract, get_messages)."""
        return list(self._ledger.messages)

    async def set_messages(self, messages: Iterable[dict[str, Any]]) -> None:
        """Replace the history (Context Contract, set_messages).

        Raises:
            ValueError: A message has no role; nothing is changed then.
        """
        replacement = list(messages)
        for message in replacement:
            check(message)
        with self._ledger.lock:
            self._ledger.reset(replacement)
            self._view = None
            self._pending = None

    async def clear(self) -> None:
        """Forget all messages (Context Contract, clear)."""
        await self.set_messages([])

    # --- beyond the contract ----------------------------------------------------------------

    async def compact(self) -> CompactionResult:
        """Compact now, whether or not it is due; the next requests get the compacted view.

        Keeps system messages and the recent turns as always, and of the rest what fits into half
        of what a request takes now.

        Returns:
            What the view leaves of the stored history, which itself stays as it is.
        """
        return await self._compact(None, asked_for=True)

    async def get_token_count(self) -> int:
        """Tokens the whole stored history would take in a request, approximately."""
        return self._calibration.tokens(self._ledger.tokens) if self._ledger.messages else 0

    async def on_provider_response(self, event: str, data: dict[str, Any]) -> None:
        """Handler of `provider:response`: learn how many tokens the last request took."""
        self._learn(data.get("usage"))

    # --- inside -----------------------------------------------------------------------------

    def _current(self) -> list[dict[str, Any]] | None:
        """What a request gets without compacting, or None where it must be compacted first."""
        ledger, view, room = self._ledger, self._view, self._room()
        asked_for = view is not None and view.asked_for
        if not asked_for and (ledger.tokens <= room or not self.config.auto_compact):
            self._view = None
            return self._hand_out(ledger.messages, ledger.tokens)
        if view is None:
            return None
        is_best = view.is_best(ledger, room)
        view.follow(ledger)
        outgrown = not asked_for and room > view.limits.room * _OUTGROWN
        too_big = view.tokens > room and self.config.auto_compact
        if outgrown or (too_big and not is_best):
            return None
        return self._hand_out(view.messages, view.tokens)

    def _hand_out(self, messages: list[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
        self._pending = tokens
        return list(messages)

    async def _compact(self, provider: Any, *, asked_for: bool = False) -> CompactionResult:
        strategy = self.config.strategy
        ledger, tokens = self._ledger, self._calibration.tokens
        before_tokens, before_messages = tokens(ledger.tokens), len(ledger.messages)
        # A handler that itself asks for messages gets a view, not another pair of events.
        announce = not self._announcing
        if announce:
            await self._announce(
                CONTEXT_PRE_COMPACT,
                before_tokens=before_tokens,
                before_messages=before_messages,
                message_count=before_messages,
                token_count=before_tokens,
                strategy=strategy,
            )
        view = await STRATEGIES[strategy](ledger, self._limits(halve=asked_for), provider)
        view.asked_for = asked_for
        self._view = view
        result = CompactionResult(
            strategy=strategy,
            before_tokens=before_tokens,
            before_messages=before_messages,
            after_tokens=tokens(view.tokens),
            after_messages=len(view.messages),
        )
        if view.tokens > view.limits.room:
            logger.warning(
                "The newest messages alone take about %d tokens, more than the %d a request may "
                "fill; the provider may refuse it. Use a model with a larger context window.",
                result.after_tokens,
                tokens(view.limits.room),
            )
        if announce:
            await self._announce(
                CONTEXT_POST_COMPACT,
                after_tokens=result.after_tokens,
                after_messages=result.after_messages,
                removed_tokens=result.removed_tokens,
                removed_messages=result.removed_messages,
                message_count=result.after_messages,
                token_count=result.after_tokens,
                strategy=strategy,
            )
        return result

    async def _announce(self, event: str, **data: Any) -> None:
        if self._hooks is None:
            return
        self._announcing = True
        try:
            await self._hooks.emit(event, data)
        finally:
            self._announcing = False

    def _limits(self, *, halve: bool) -> Limits:
        room = self._room()
        target = int(room * _FILL)
        if halve:
            now = self._view.tokens if self._view is not None else self._ledger.tokens
            target = min(target, now // 2)
        return Limits(room, target, self.config.keep_recent_turns, self.config.keep_recent)

    def _room(self) -> int:
        """Estimated tokens that messages may take within the threshold of the budget."""
        limit = int(self._budget * self.config.compaction_threshold)
        # What else a request carries may exceed a small budget; messages still need some room.
        return max(self._calibration.estimate(limit), limit // 10)

    def _budget_of(self, token_budget: int | None, provider: Any) -> int:
        if token_budget is not None:
            return token_budget
        if provider is None:
            return self.config.max_tokens
        try:
            defaults = provider.get_info().defaults or {}
            window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        except Exception:  # foreign code; a budget of our own is better than no request
            logger.warning(
                "Provider %s does not tell its context window; using max_tokens=%d",
                getattr(provider, "name", provider),
                self.config.max_tokens,
                exc_info=True,
            )
            return self.config.max_tokens
        if not window or not output:
            return self.config.max_tokens
        budget = int(window) - int(output) - SAFETY_MARGIN
        return budget if budget > 0 else int(window) // 2

    def _learn(self, usage: object) -> None:
        """Correct estimates by the usage of the request whose messages were handed out last."""
        tokens = reported_input(usage) if usage is not None else 0
        if tokens and self._pending is not None:
            self._calibration.observe(self._pending, tokens)
            self._pending = None
