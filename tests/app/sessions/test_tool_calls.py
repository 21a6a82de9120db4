"""The numbers of tool calls: the same on screen, in `/show` and in `session show --call`."""

from pathlib import Path
from typing import Any

from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.tool_calls import CallNumbers, StoredCall, calls_in, results_in
from amplifier_support.journal import CLEAR, replacement


def block(call_id: str, name: str = "bash") -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "input": {"n": 1}}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [block(one) for one in ids]}


def test_calls_stored_in_two_forms_count_once() -> None:
    listed = [{"id": "a", "tool": "bash", "arguments": {"n": 1}}]
    assert calls_in({**calling("a"), "tool_calls": listed}) == [StoredCall("a", "bash", {"n": 1})]


def test_malformed_calls_count_with_the_text_the_model_sent() -> None:
    function = {"id": "b", "function": {"name": "grep", "arguments": '{"pattern": '}}
    message = {"role": "assistant", "content": None, "tool_calls": [function, "odd", {}]}
    assert calls_in(message) == [
        StoredCall("b", "grep", '{"pattern": '),
        StoredCall(None, "", None),
    ]


def test_results_are_found_in_both_forms() -> None:
    assert results_in({"role": "tool", "tool_call_id": "a", "content": "x"}) == [("a", "x")]
    blocks = [{"type": "tool_result", "tool_call_id": "b", "output": {"n": 1}}]
    assert results_in({"role": "user", "content": blocks}) == [("b", {"n": 1})]


def test_numbers_go_on_after_a_cleared_or_replaced_conversation() -> None:
    numbers = CallNumbers([calling("a", "b"), CLEAR, calling("c")])
    assert (numbers.of("b"), numbers.of("c")) == (2, 3)
    numbers.add(replacement([calling("c"), calling("new")]))
    assert (numbers.of("c"), numbers.of("new")) == (3, 4)
    assert numbers.add(calling("d", "e")) == [5, 6]


def test_an_id_used_again_means_its_latest_call() -> None:
    numbers = CallNumbers([calling("call_1"), calling("call_1")])
    assert (numbers.count, numbers.of("call_1"), numbers.of("other")) == (2, 2, None)


def test_a_resumed_session_goes_on_with_its_numbers(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    saved = store.create("s", project="/p")
    saved.append(calling("a", "b"))
    assert saved.calls.of("b") == 2
    saved.close()
    again = store.open("s")
    again.append(calling("c"))
    assert (again.calls.of("a"), again.calls.of("c")) == (1, 3)
    again.close()
