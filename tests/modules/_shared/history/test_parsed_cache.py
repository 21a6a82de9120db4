"""Parsed messages are cached between requests, without any effect on the requests."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amplifier_modules._shared.history import parsing
from amplifier_modules._shared.history.parsing import ParsedMessages
from amplifier_modules._shared.history.request import to_chat_request
from tests.modules._shared.history.history_rules import plain
from tests.modules._shared.history.test_history import USER, answer, asks, block, histories, listed


def reported(request: Any) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    return [plain(message) for message in request.messages], request.repairs


def same(history: list[Any], kept: ParsedMessages) -> Any:
    """The request with what is kept, which is the one without."""
    request = to_chat_request(history, parsed=kept)
    assert reported(request) == reported(to_chat_request(history))
    return request


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.lists(st.integers(0, 14), max_size=3), st.booleans())
def test_a_history_that_grows_and_shrinks(
    history: list[Any], cuts: list[int], copied: bool
) -> None:
    kept = ParsedMessages()
    for length in [*range(len(history) + 1), *cuts]:
        part = history[:length]
        same(copy.deepcopy(part) if copied else part, kept)


def test_a_message_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    read_message = parsing.read

    def counted(raw: Any) -> parsing.Reading:
        read.append(raw)
        return read_message(raw)

    monkeypatch.setattr(parsing, "read", counted)
    kept, history = ParsedMessages(), [USER]
    for number in range(5):
        call = f"c{number}"
        history += [asks(listed(call), content=[block(call)]), answer(call, f"text {number}")]
        to_chat_request(copy.deepcopy(history), parsed=kept)
    assert len(read) == len(history[1:])  # a message of text costs less to build than to find


def test_a_changed_message_is_read_again() -> None:
    kept, message = ParsedMessages(), {"role": "user", "content": [{"type": "text", "text": "one"}]}
    same([message], kept)
    message["content"][0]["text"] = "two"  # type: ignore[index]
    assert same([message], kept).messages[0].content[0].text == "two"


@pytest.mark.parametrize("change", [True, 1.0, "1", None])
def test_what_is_equal_to_python_is_not_the_same(change: Any) -> None:
    kept, call = ParsedMessages(), block("c1", input={"n": 1})
    history = [USER, {"role": "assistant", "content": [call]}, answer("c1")]
    same(history, kept)
    call["input"]["n"] = change
    (sent,) = same(history, kept).messages[1].content
    assert repr(sent.input) == repr({"n": change})


def test_who_changes_a_request_or_a_copy_changes_no_later_request() -> None:
    kept = ParsedMessages()
    history = [USER, {"role": "assistant", "content": [block("c1")]}, answer("c1")]
    handed_out = copy.deepcopy(history)
    request = to_chat_request(handed_out, parsed=kept)
    handed_out[1]["content"][0]["input"]["path"] = "/etc/passwd"
    for message in request.messages:
        message.name = "changed"
    request.messages[0].content = "changed"
    request.messages[1].content[0].input["path"] = "changed"  # type: ignore[union-attr]
    request.messages[1].content.append("changed")  # type: ignore[union-attr]
    same(history, kept)


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
    kept = ParsedMessages()
    for _ in range(2):
        request = same(HISTORY, kept)
    change(request.messages)
    same(HISTORY, kept)


def test_messages_are_put_together_once() -> None:
    kept = ParsedMessages()
    first, second = same(HISTORY, kept).messages, same(copy.deepcopy(HISTORY), kept).messages
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_the_same_message_twice_is_two_messages() -> None:
    kept = ParsedMessages()
    turn = [asks(listed("c1")), answer("c1")]
    history = [USER, *turn, USER, *copy.deepcopy(turn), USER]
    for _ in range(2):
        messages = same(history, kept).messages
        ids = [m.tool_call_id for m in messages if m.role == "tool"]
        assert ids == ["c1", "c1_2"]
