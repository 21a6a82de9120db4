"""Messages to a running turn: capability `session.steer`.

A message waits until the turn is between two steps, with all tool calls answered and the next
request not yet made; then it is added to the conversation as a user message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import Any

from amplifier_modules._shared.loop.channel import Channel, TurnDenied
from amplifier_support.named_tuple import NamedTuple

STEER_INJECTED = "steer:injected"
TURN_ENDING = "turn:ending"
"""A turn is about to end with its answer."""
STEER_EVENTS = (STEER_INJECTED, TURN_ENDING)
"""Events of every bundled loop in addition to those that the kernel defines."""


class _Waiting(NamedTuple):
    id: str
    text: str


class Steering:
    """The queue of messages to the model; calling it adds one.

    It outlives turns: a message that arrives between turns is added to the next one, after its
    prompt.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()

    def __call__(self, text: str) -> None:
        """Queue `text` for the next step of the running turn; empty text is ignored.

        Raises:
            TypeError: `text` is not a string.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"session.steer expects a str, got {type(text).__name__}")
        if text.strip():
            self._waiting.append(_Waiting(token_hex(8), text))

    def waiting(self) -> list[str]:
        """The queued messages, in order."""
        return [waiting.text for waiting in self._waiting]

    def take_back(self) -> list[str]:
        """Empty the queue and return its messages, in order."""
        texts = self.waiting()
        self._waiting.clear()
        return texts

    async def deliver(
        self,
        channel: Channel,
        add: Callable[[dict[str, Any]], Awaitable[None]],
        ids: Mapping[str, Any],
    ) -> None:
        """Add the queued messages to the conversation, in order.

        Args:
            channel: The turn's hooks. They may change the text, or end the turn by denying it.
            add: Adds a message to the context.
            ids: Data of the event of each message.

        Raises:
            TurnDenied: A hook denied a message; those behind it stay queued.
            Exception: The context failed; the message stays queued, too.
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
                changed = (await channel.emit_or_raise(STEER_INJECTED, data)).get("text")
                text = changed if isinstance(changed, str) and changed.strip() else waiting.text
                await add({"role": "user", "content": text})
            except TurnDenied:
                raise
            except BaseException:
                self._waiting.appendleft(waiting)
                raise
