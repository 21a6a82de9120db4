"""Messages that were put together for a request, kept for the next one."""

from __future__ import annotations

import marshal
from typing import Any, cast

from amplifier_core.message_models import Message


class Made:
    """A message that was put together, for further requests to use.

    Attributes:
        message: The message. Whoever was given it in a request may have changed it.
    """

    __slots__ = ("_state", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._state = _state_of(message)

    def is_untouched(self) -> bool:
        """Whether it is as it was made; False where that cannot be told."""
        return self._state is not None and self._state == _state_of(self.message)


def _state_of(message: Message) -> int | None:
    """A number that stands for all that is in a message; None where it has more than plain data."""
    content: Any = message.content
    try:
        if type(content) is list:
            content = [(block.__dict__, block.model_extra) for block in cast("list[Any]", content)]
        state: Any = ({**message.__dict__, "content": content}, message.model_extra)
        return hash(marshal.dumps(state))
    except (ValueError, AttributeError):
        return None
