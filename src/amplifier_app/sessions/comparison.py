"""Where two sessions diverge, and what each did after."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from amplifier_app.sessions.conversation import Conversation, Item, Note, Prompt, Step

_IGNORED = ("metadata", "timestamp", "id")


class Comparison(NamedTuple):
    """Two conversations compared.

    Attributes:
        common: The number of items that both begin with.
        last_common_step: The number of the last step they share; 0 if none.
        left: The further items of the first.
        right: The further items of the second.
    """

    common: int
    last_common_step: int
    left: list[Item]
    right: list[Item]


def compare(left: Conversation, right: Conversation) -> Comparison:
    """Find the common beginning of two conversations.

    Ids, times and usage do not count: two runs that said and did the same are the same.
    """
    lefts, rights = iter(left), iter(right)
    count = step = 0
    for one, other in itertools.zip_longest(lefts, rights):
        if one is None or other is None or _essence(one) != _essence(other):
            after = [[] if item is None else [item] for item in (one, other)]
            return Comparison(count, step, [*after[0], *lefts], [*after[1], *rights])
        count += 1
        step = one.number if isinstance(one, Step) else step
    return Comparison(count, step, [], [])


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
