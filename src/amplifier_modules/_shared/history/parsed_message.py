"""The parts of a request that one stored message becomes."""

from __future__ import annotations

from typing import Any

from amplifier_core.message_models import Message
from amplifier_modules._shared.history.built_messages import BuiltMessage

# Plain classes: created for every message of every request; other kinds would cost start-up time.


class Call:
    """A tool call of an assistant message; `fields` are those of its block."""

    __slots__ = ("fields", "id")

    def __init__(self, call_id: str | None, fields: dict[str, Any]) -> None:
        self.id = call_id
        self.fields = fields


class Result:
    """The answer to a tool call: text, or text and image blocks; `built` as in `Reading`."""

    __slots__ = ("built", "content", "id", "is_error", "name")

    def __init__(
        self,
        call_id: str | None,
        content: str | list[Any],
        *,
        name: str | None = None,
        is_error: bool = False,
    ) -> None:
        self.id = call_id
        self.content = content
        self.name = name
        self.is_error = is_error
        self.built: BuiltMessage | None = None


class Reading:
    """One parsed message.

    `content` holds text, or blocks in order: mappings or typed blocks, and a `Call` in place of each
    call. `calls` are the calls to use, `results` the calls that the message answers. `message` is set
    if a typed message can be used unchanged. Immutable after parsing: requests share it, and `built`,
    the message built from it.
    """

    __slots__ = (
        "built",
        "calls",
        "content",
        "message",
        "name",
        "prefill",
        "repairs",
        "results",
        "role",
    )

    def __init__(self, role: str) -> None:
        self.role = role
        self.content: str | list[Any] = ""
        self.name: str | None = None
        self.prefill = False
        self.calls: list[Call] = []
        self.results: list[Result] = []
        self.message: Message | None = None
        self.built: BuiltMessage | None = None
        self.repairs: list[str] = []

    def is_untouched(self) -> bool:
        """Whether the built message, and so possibly the content they share, is unchanged."""
        built = (self.built, *(result.built for result in self.results))
        return all(each is None or each.is_untouched() for each in built)
