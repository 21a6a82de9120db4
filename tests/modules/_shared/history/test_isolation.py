"""Who changes a request changes neither the stored messages nor a later request."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from amplifier_modules._shared.history.request import to_chat_request
from tests.modules._shared.history.history_rules import plain
from tests.modules._shared.history.test_history import answer, block

HISTORY = [
    {"role": "user", "content": "one", "name": "me"},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "two"}, block("c1", input={"more": []})],
    },
    answer("c1", "three"),
    {"role": "user", "content": [{"type": "text", "text": "four", "cache": {"on": True}}]},
]
CHANGES = {
    "text": lambda messages: setattr(messages[0], "content", "changed"),
    "name": lambda messages: setattr(messages[0], "name", "changed"),
    "more": lambda messages: setattr(messages[0], "more", "changed"),
    "role": lambda messages: setattr(messages[1], "role", "user"),
    "block's text": lambda messages: setattr(messages[1].content[0], "text", "changed"),
    "block's extra": lambda messages: messages[3].content[0].cache.update(on=False),
    "call's input": lambda messages: messages[1].content[1].input.update(path="changed"),
    "call's id": lambda messages: setattr(messages[1].content[1], "id", "c2"),
    "one block less": lambda messages: messages[1].content.pop(0),
    "another order": lambda messages: messages[1].content.reverse(),
    "another block": lambda messages: messages[1].content.__setitem__(0, block("c3")),
    "a result": lambda messages: setattr(messages[2], "content", "changed"),
    "a result's call": lambda messages: setattr(messages[2], "tool_call_id", "c2"),
    "deep in a call's input": lambda messages: messages[1].content[1].input["more"].append(1),
    "metadata": lambda messages: setattr(messages[0], "metadata", {"a": object()}),
    "something that is not data": lambda messages: setattr(
        messages[1].content[0], "text", object()
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_change_of_a_request_is_in_a_later_one(change: Any) -> None:
    stored = copy.deepcopy(HISTORY)
    first = to_chat_request(stored)
    before = [plain(message) for message in first.messages]
    change(first.messages)
    assert stored == HISTORY
    assert [plain(message) for message in to_chat_request(stored).messages] == before
