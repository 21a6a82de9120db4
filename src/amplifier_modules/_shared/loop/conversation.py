"""The conversation of a loop: access to its context, and the part of it that fits into requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from amplifier_core.cancellation import await_result
from amplifier_modules._shared.history.values import as_mapping, call_ids
from amplifier_modules._shared.loop.replies import join_text, read_blocks
from amplifier_modules._shared.loop.results import wrong_answer
from amplifier_modules._shared.providers.tokens import estimate_message


async def add_message(context: Any, message: dict[str, Any]) -> None:
    """Add a message to the context."""
    await await_result(context.add_message(message))


async def stored_messages(context: Any) -> list[Any]:
    """All messages of the context, not compacted."""
    return await await_result(context.get_messages())


async def last_answer(context: Any) -> str:
    """The text of the last message if it is an answer without tool calls, else an empty one."""
    messages = await stored_messages(context)
    last: dict[str, Any] = dict(as_mapping(messages[-1]) or {}) if messages else {}
    is_answer = last.get("role") == "assistant" and not call_ids(last)
    return join_text(read_blocks(last)) if is_answer else ""


async def request_view(context: Any, provider: Any, token_budget: int | None = None) -> list[Any]:
    """The messages that the context selects for this provider or token budget.

    Raises:
        TypeError: The context did not return a list.
    """
    call = "get_messages_for_request"
    for_request = getattr(context, call, None)
    if callable(for_request):
        budget = {} if token_budget is None else {"token_budget": token_budget}
        messages = await await_result(for_request(provider=provider, **budget))
    else:
        call = "get_messages"
        messages: Any = await stored_messages(context)
    if isinstance(messages, (str, bytes, dict)) or not isinstance(messages, Iterable):
        # Hosts wrap contexts to save what is added; report the wrapped one.
        inner = getattr(context, "inner", context)
        raise wrong_answer("context", None, inner, call, messages, "a list of messages")
    return list(cast("Iterable[Any]", messages))


_SMALLER = 0.9
"""A new view is worth a request if it is at most this fraction of the one that was too long."""

_LIKELY = 0.75
"""If the limit is unknown, a compacted view of at most this fraction is small enough."""

_MARGIN = 0.9
"""Fraction of the reported limit to use: a request has more than its messages."""

_TRIES = 3
"""Number of times a context is asked for a smaller view before its answer is used as it is."""

_COUNT = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d{4,}\b")


class ContextWindow:
    """The part of a conversation that fits into requests, learned from rejected requests.

    It outlives turns, so that a size a model has rejected is not tried again.
    """

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, str | None], int] = {}

    def budget(self, provider: str, model: str | None) -> int | None:
        """Token budget for the messages of a request; None leaves it to the context."""
        return self._budgets.get((provider, model))

    async def make_smaller(
        self,
        context: Any,
        name: str,
        provider: Any,
        model: str | None,
        *,
        refused: list[Any],
        reason: str,
    ) -> list[Any] | None:
        """A view of the conversation that is clearly smaller than the rejected one.

        The context compacts itself if it can. If that is not enough, it is asked for the size that
        fits, or for half if that is unknown, now and with every later request to the same model.

        Args:
            context: The conversation.
            name: Name of the provider that rejected the request.
            provider: That provider.
            model: The requested model.
            refused: The view that was too long.
            reason: The provider's error message.

        Returns:
            None if the context has no smaller view.
        """
        before, share = measure_size(refused), share_that_fits(reason)
        compact = getattr(context, "compact", None)
        if callable(compact):
            await await_result(compact())
            view = await request_view(context, provider, self.budget(name, model))
            if measure_size(view) <= before * (share or _LIKELY):
                return view
        target = before * (share or 0.5)
        budget, view = target, refused
        for _ in range(_TRIES):
            # Contexts count in the vendor's tokens, as far as they have learned the ratio.
            self._budgets[name, model] = max(1, int(budget))
            view = await request_view(context, provider, max(1, int(budget)))
            if measure_size(view) <= target:
                break
            budget *= target / measure_size(view)
        return view if measure_size(view) <= before * _SMALLER else None


def measure_size(messages: list[Any]) -> int:
    """Estimated tokens of a view."""
    return sum(estimate_message(message) for message in messages)


def share_that_fits(reason: str) -> float | None:
    """The fraction of a request that fits, from the numbers in "213000 tokens > 200000 maximum".

    None if the message does not have two such numbers.
    """
    counts = {int(count.replace(",", "")) for count in _COUNT.findall(reason)}
    if len(counts) != 2:
        return None
    return min(counts) / max(counts) * _MARGIN
