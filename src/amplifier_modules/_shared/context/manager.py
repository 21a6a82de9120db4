"""The base of the bundled contexts: the contract's five methods, compaction, token counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amplifier_core.events import CONTEXT_POST_COMPACT, CONTEXT_PRE_COMPACT, PROVIDER_RESPONSE
from amplifier_core.hooks import HookRegistry
from amplifier_core.interfaces import Hooks
from amplifier_core.models import CompactionResult
from amplifier_modules._shared.context.compaction import (
    Limits,
    Strategy,
    View,
    find_window,
    truncated,
)
from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.context.ledger import Ledger, check
from amplifier_modules._shared.module.spans import event_ids
from amplifier_modules._shared.providers.tokens import Calibration, reported_input

logger = logging.getLogger(__name__)


class Truncate:
    """Drops the oldest messages: beyond the recent turns, the newest tool groups are kept first,
    then the newest other messages.
    """

    async def view(self, ledger: Ledger, limits: Limits, provider: Any) -> View:
        return truncated(ledger, limits)

    def forget(self) -> None:
        pass


_FILL = 0.6
"""Fraction of the room that older messages may fill when a view is built."""

_OUTGROWN = 1.5
"""A view is rebuilt when the room is this many times the one it was built for."""


class CompactingContext:
    """Keeps the conversation in memory and hands out views that fit a budget.

    Messages are stored exactly as received and never changed; returned lists are copies. A view is
    reused while it fits, so the cost of a request depends on what is new since the last one.

    Args:
        config: Settings.
        hooks: Where compaction events go; None for nowhere.
        coordinator: The session's coordinator. Without one `summarize` uses only the provider of
            the request, and of the results of hooks only a denial is applied.
    """

    def __init__(
        self, config: ContextConfig, *, hooks: Hooks | None = None, coordinator: Any = None
    ) -> None:
        self.config = config
        self._hooks: Hooks = hooks or HookRegistry()
        self._ledger = Ledger()
        self._calibration = Calibration()
        self._coordinator = coordinator
        self._strategy = self._make_strategy()
        self._view: View | None = None
        self._provider: Any = None
        self._budget = config.max_tokens
        self._pending: int | None = None
        self._compacting = False

    def _make_strategy(self) -> Strategy:
        """The configured strategy; only that one is imported."""
        if self.config.strategy == "importance":
            from amplifier_modules._shared.context.importance import Importance

            return Importance()
        if self.config.strategy == "summarize":
            from amplifier_modules._shared.context.summarize import ModelCall, Summarize

            call = ModelCall(self.config, self, self._hooks, self._coordinator)
            return Summarize(self.config, call)
        return Truncate()

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
            token_budget: Explicit budget in tokens; takes precedence.
            provider: Provider whose `get_info().defaults` give the budget as context window minus
                output minus a margin of 1,000.

        Returns:
            A new list of stored messages, in order; a message too large for the budget is replaced
            with a shortened copy.
        """
        self._provider = provider if provider is not None else self._provider
        self._budget = self._resolve_budget(token_budget, provider)
        with self._ledger.lock:
            current = self._current()
            if current is not None:
                return current
        await self._compact(self._provider)
        with self._ledger.lock:
            # Messages added while the events were handled belong to the request.
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
        self._replace(replacement)

    async def clear(self) -> None:
        """Remove all messages (Context Contract, clear)."""
        await self.set_messages([])

    # --- beyond the contract ----------------------------------------------------------------

    async def compact(self, focus: str = "") -> CompactionResult:
        """Compact now, even if it is not necessary; later requests get the compacted view.

        Keeps system messages and recent turns as usual, and older messages up to half the current
        size of a request.

        Args:
            focus: What a summary must keep above all, for the strategy `summarize`.

        Returns:
            Counts of the view; the stored history does not change.
        """
        return await self._compact(self._provider, asked_for=True, focus=focus)

    async def suggest_title(self, prompt: str, answer: str) -> str | None:
        """Return a title by the model for the conversation that begins so; None if `titles` is `prompt`.

        Raises:
            CallFailed: The request failed, or the budget or a hook did not allow it.
        """
        if self.config.titles == "prompt":
            return None
        from amplifier_modules._shared.context.summarize import ModelCall

        call = ModelCall(self.config, self, self._hooks, self._coordinator)
        return await call.ask_for_title(self._provider, prompt, answer)

    async def should_compact(self) -> bool:
        """Return True if a request exceeds its limit; for loops that call `compact` themselves."""
        with self._ledger.lock:
            view = self._view
            if view is not None:
                view.follow(self._ledger)
            taken = self._ledger.tokens if view is None else view.tokens
            return taken > self._room()

    async def get_token_count(self) -> int:
        """Estimated tokens of the whole stored history in a request."""
        return self._calibration.tokens(self._ledger.tokens) if self._ledger.messages else 0

    async def on_provider_response(self, event: str, data: dict[str, Any]) -> None:
        """Handler of `provider:response`: learn how many tokens the last request used."""
        if not data.get("purpose"):  # otherwise it does not answer a request of this conversation
            self._learn(data.get("usage"))

    def _replace(self, messages: Iterable[dict[str, Any]]) -> None:
        with self._ledger.lock:
            self._ledger.reset(messages)
            self._strategy.forget()
            self._view = None
            self._pending = None

    # --- inside -----------------------------------------------------------------------------

    def _current(self) -> list[dict[str, Any]] | None:
        """The messages for a request without compacting; None if it must be compacted first."""
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

    async def _compact(
        self, provider: Any, *, asked_for: bool = False, focus: str = ""
    ) -> CompactionResult:
        limits = self._limits(halve=asked_for)._replace(focus=focus)
        before_tokens = self._calibration.tokens(self._ledger.tokens)
        before_messages = len(self._ledger.messages)
        if self._compacting:
            # A caller that waited for a view being built uses that one instead of rebuilding it.
            return self._use(truncated(self._ledger, limits), before_tokens, before_messages)
        self._compacting = True
        before = {"before_tokens": before_tokens, "before_messages": before_messages}
        try:
            await self._announce(
                CONTEXT_PRE_COMPACT,
                **before,
                message_count=before_messages,
                token_count=before_tokens,
                strategy=self.config.strategy,
            )
            view = await self._build_view(limits, provider)
            view.asked_for = asked_for
            result = self._use(view, **before)
            await self._announce(
                CONTEXT_POST_COMPACT,
                **dict(result),
                removed_tokens=result.removed_tokens,
                removed_messages=result.removed_messages,
                message_count=result.after_messages,
                token_count=result.after_tokens,
                **({} if view.problem is None else {"problem": view.problem}),
            )
        finally:
            self._compacting = False
        return result

    async def _build_view(self, limits: Limits, provider: Any) -> View:
        generation = self._ledger.generation
        view = await self._strategy.view(self._ledger, limits, provider)
        if generation == self._ledger.generation:
            return view
        # The history was replaced in the meantime: drop everything of the old one.
        self._strategy.forget()
        return truncated(self._ledger, limits)

    def _use(self, view: View, before_tokens: int, before_messages: int) -> CompactionResult:
        self._view = view
        tokens = self._calibration.tokens
        result = CompactionResult(
            strategy=view.strategy,
            before_tokens=before_tokens,
            before_messages=before_messages,
            after_tokens=tokens(view.tokens),
            after_messages=len(view.messages),
        )
        if view.tokens > view.limits.room:
            logger.warning(
                "The newest messages alone take about %d tokens, more than the %d available to a "
                "request; the provider may reject it. Use a model with a larger context window.",
                result.after_tokens,
                tokens(view.limits.room),
            )
        return result

    async def _announce(self, event: str, **data: Any) -> None:
        await self._hooks.emit(event, {**data, **event_ids()})

    def _limits(self, *, halve: bool) -> Limits:
        room = self._room()
        target = int(room * _FILL)
        if halve:
            now = self._view.tokens if self._view is not None else self._ledger.tokens
            target = min(target, now // 2)
        return Limits(room, target, self.config.keep_recent_turns, self.config.keep_recent)

    def _room(self) -> int:
        """Estimated tokens available to messages within the threshold of the budget."""
        limit = int(self._budget * self.config.compaction_threshold)
        # Tools and instructions alone may exceed a small budget; messages still need some room.
        return max(self._calibration.estimate(limit), limit // 10)

    def _resolve_budget(self, token_budget: int | None, provider: Any) -> int:
        if token_budget is not None:
            return token_budget
        window = find_window(provider)
        return self.config.max_tokens if window is None else window.budget

    def _learn(self, usage: object) -> None:
        """Correct estimates by the usage of the last request."""
        tokens = reported_input(usage) if usage is not None else 0
        if tokens and self._pending is not None:
            self._calibration.observe(self._pending, tokens)
            self._pending = None


async def mount_context(
    coordinator: Any, context: CompactingContext, module_id: str
) -> Callable[[], None]:
    """Mount `context`, announce its events, and pass it the usage that providers report.

    Returns:
        Cleanup: stop listening for usage.
    """
    await coordinator.mount("context", context)
    coordinator.register_contributor(
        "observability.events", module_id, lambda: [CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT]
    )
    return coordinator.hooks.register(
        PROVIDER_RESPONSE, context.on_provider_response, name=module_id
    )
