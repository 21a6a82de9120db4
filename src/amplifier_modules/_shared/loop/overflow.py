"""What is done about a request that was too long: a shorter one, once, never the same again."""

from __future__ import annotations

import inspect
import re
from typing import Any

from amplifier_modules._shared.loop.conversation import view_of
from amplifier_modules._shared.providers.tokens import estimate_message

CONTEXT_OVERFLOW = "context:overflow"

_SMALLER = 0.9
"""A view has to be at most this much of the one that was too long to be worth a request."""

_LIKELY = 0.75
"""A compacted view that is at most this much of it will do, where nobody says how much fits."""

_MARGIN = 0.9
"""How much of what is said to fit is used: a request is more than its messages."""

_TRIES = 3
"""How often a context is asked for less before what it gives has to do."""

_COUNT = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d{4,}\b")


class Room:
    """How much of a conversation fits into requests, as far as refusals have taught.

    It outlives turns, so that what is too long for a model is not tried anew each time.
    """

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, str | None], int] = {}

    def budget(self, provider: str, model: str | None) -> int | None:
        """Tokens the messages of a request may take; None leaves that to the context."""
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
        """A view of the conversation that is clearly smaller than the one that was refused.

        The context compacts itself if it can. If that is not enough it is asked for what fits, or
        for half where nobody says what does, now and with every later request to the same model.

        Args:
            context: The conversation.
            name: Name of the provider that refused.
            provider: That provider.
            model: The model that was asked.
            refused: The view that was too long.
            reason: What the provider said.

        Returns:
            None where the context has nothing smaller to give.
        """
        before, share = size_of(refused), share_that_fits(reason)
        compact = getattr(context, "compact", None)
        if callable(compact):
            done: Any = compact()
            if inspect.isawaitable(done):
                await done
            view = await view_of(context, provider, self.budget(name, model))
            if size_of(view) <= before * (share or _LIKELY):
                return view
        target = before * (share or 0.5)
        budget, view = target, refused
        for _ in range(_TRIES):
            # Contexts count in the vendor's tokens, as far as they have learnt these.
            self._budgets[name, model] = max(1, int(budget))
            view = await view_of(context, provider, max(1, int(budget)))
            if size_of(view) <= target:
                break
            budget *= target / size_of(view)
        return view if size_of(view) <= before * _SMALLER else None


def size_of(messages: list[Any]) -> int:
    """Estimated tokens of a view."""
    return sum(estimate_message(message) for message in messages)


def share_that_fits(reason: str) -> float | None:
    """How much of a request fits, by the two numbers in "213000 tokens > 200000 maximum".

    None where the message has no two such numbers.
    """
    counts = {int(found.replace(",", "")) for found in _COUNT.findall(reason)}
    if len(counts) != 2:
        return None
    return min(counts) / max(counts) * _MARGIN
