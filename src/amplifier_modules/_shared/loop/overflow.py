"""What is done about a request that was too long: a shorter one, once, never the same again."""

from __future__ import annotations

import inspect
from typing import Any

from amplifier_modules._shared.loop.requests import view_of
from amplifier_modules._shared.tokens import estimate_message

CONTEXT_OVERFLOW = "context:overflow"

_SMALLER = 0.9
"""A view has to be at most this much of the one that was too long to be worth a request."""


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
        self, context: Any, name: str, provider: Any, model: str | None, refused: list[Any]
    ) -> list[Any] | None:
        """A view of the conversation that is clearly smaller than the one that was refused.

        The context compacts itself if it can. If that does not help it is asked for half, now and
        with every later request to the same model.

        Args:
            context: The conversation.
            name: Name of the provider that refused.
            provider: That provider.
            model: The model that was asked.
            refused: The view that was too long.

        Returns:
            None where the context has nothing smaller to give.
        """
        before = size_of(refused)
        compact = getattr(context, "compact", None)
        if callable(compact):
            done: Any = compact()
            if inspect.isawaitable(done):
                await done
            view = await view_of(context, provider, self.budget(name, model))
            if size_of(view) <= before * _SMALLER:
                return view
        self._budgets[name, model] = half = max(1, before // 2)
        view = await view_of(context, provider, half)
        return view if size_of(view) <= before * _SMALLER else None


def size_of(messages: list[Any]) -> int:
    """Estimated tokens of a view."""
    return sum(estimate_message(message) for message in messages)
