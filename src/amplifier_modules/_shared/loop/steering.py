"""What is said to a turn while it runs: capability `session.steer`.

A text waits until the turn is between two steps, all tool calls answered and the next request not
yet made, and is then a user message of the conversation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Any, NamedTuple

from amplifier_modules._shared.loop.channel import Channel, TurnDenied

STEER_INJECTED = "steer:injected"
STEER_EVENTS = (STEER_INJECTED,)
"""Events of every bundled loop beside those the kernel names."""


class _Waiting(NamedTuple):
    id: str
    text: str


class Steering:
    """The texts that wait to be told to the model; calling it queues one.

    It outlives turns: what comes when none runs is told with the next one, after its prompt.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def __call__(self, text: str) -> None:
        """Queue `text` for the next step of the running turn; empty text is nothing.

        Raises:
            TypeError: It is no text.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"session.steer takes text, not {type(text).__name__}")
        if text.strip():
            self._waiting.append(_Waiting(token_hex(8), text))

    def waiting(self) -> list[str]:
        """What no turn has used yet, in order."""
        return [waiting.text for waiting in self._waiting]

    def take_back(self) -> list[str]:
        """What no turn has used, in order; it is then no longer queued."""
        texts = self.waiting()
        self._waiting.clear()
        return texts

    async def tell(
        self,
        channel: Channel,
        add: Callable[[dict[str, Any]], Awaitable[None]],
        ids: Mapping[str, Any],
    ) -> None:
        """Add what waits to the conversation, in order.

        Args:
            channel: The turn's hooks. They may change the text, or end the turn by denying it.
            add: Adds a message to the context.
            ids: What the event of each text carries.

        Raises:
            TurnDenied: A hook refused a text; those behind it go on waiting.
            Exception: The context failed; the text goes on waiting, too.
        """
        while self._waiting:
            waiting = self._waiting.popleft()
            data = {
                "text": waiting.text,
                "steer_id": waiting.id,
                "waiting": len(self._waiting),
                **ids,
            }
            try:
                changed = (await channel.step(STEER_INJECTED, data)).get("text")
                text = changed if isinstance(changed, str) and changed.strip() else waiting.text
                await add({"role": "user", "content": text})
            except TurnDenied:
                raise
            except BaseException:
                self._waiting.appendleft(waiting)
                raise
