"""Where two sessions diverge, and what each did after."""

from __future__ import annotations

from typing import Any, NamedTuple

from amplifier_app.sessions.conversation import Conversation, Item, Note, Prompt, Step

_IGNORED = ("metadata", "timestamp", "id")


class Comparison(NamedTuple):
    """Two conversations compared.

    Attributes:
        common: Items that both begin with.
        left: The further items of the first.
        right: The further items of the second.
    """

    common: list[Item]
    left: list[Item]
    right: list[Item]

    @property
    def last_common_step(self) -> int:
        """The number of the last step they share; 0 if none."""
        return max((item.number for item in self.common if isinstance(item, Step)), default=0)


def compare(left: Conversation, right: Conversation) -> Comparison:
    """Find the common beginning of two conversations.

    Ids, times and usage do not count: two runs that said and did the same are the same.
    """
    count = 0
    for one, other in zip(left.items, right.items, strict=False):
        if _essence(one) != _essence(other):
            break
        count += 1
    return Comparison(left.items[:count], left.items[count:], right.items[count:])


def _essence(item: Item) -> Any:
    """What an item says and does."""
    if isinstance(item, Step):
        calls = [(call.name, call.input, call.shown) for call in item.calls]
        return ("step", _content(item.message), calls)
    if isinstance(item, Prompt):
        return ("prompt", item.text)
    assert isinstance(item, Note)
    return (item.kind, _content(item.message), len(item.replacement))


def _content(message: dict[str, Any]) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return content
    return [
        {key: value for key, value in block.items() if key not in _IGNORED}
        if isinstance(block, dict)
        else block
        for block in content
        if not (isinstance(block, dict) and block.get("type") in ("tool_call", "thinking"))
    ]
