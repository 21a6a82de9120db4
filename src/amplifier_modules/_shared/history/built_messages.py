"""Messages that were built for a request, cached for the next one."""

from __future__ import annotations

import marshal
from typing import Any, cast

from amplifier_core.message_models import Message


class BuiltMessage:
    """A message that was built for a request and can be reused.

    Attributes:
        message: The message. A receiver of an earlier request may have changed it.
    """

    __slots__ = ("_state", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._state = _state_of(message)

    def is_untouched(self) -> bool:
        """Whether it is unchanged since it was built; False if that is unknown."""
        return self._state is not None and self._state == _state_of(self.message)


def _state_of(message: Message) -> int | None:
    """A hash of a message's content; None if it has more than plain data."""
    content: Any = message.content
    try:
        if type(content) is list:
            content = [(block.__dict__, block.model_extra) for block in cast("list[Any]", content)]
        state: Any = ({**message.__dict__, "content": content}, message.model_extra)
        return hash(marshal.dumps(state))
    except (ValueError, AttributeError):
        return None
