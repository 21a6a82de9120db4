"""Everything a command prints is an answer or reported as invalid; nothing is a yes by accident."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules.hooks_shell.shell_hook import FIXED, Answer, InvalidAnswer, read_answer

KEYS = ["decision", "action", "reason", "context", "contextInjection", "data", "message", "other"]
TEXTS = st.sampled_from(["", " ", "x", "é\n", "\ud800", "allow", "deny", "Deny", "ask_user"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


@given(st.binary(max_size=200))
def test_any_bytes(output: bytes) -> None:
    try:
        answer = read_answer(output)
    except InvalidAnswer:
        return
    assert answer == Answer() or json.loads(output)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_object(value: dict[str, Any]) -> None:
    try:
        answer = read_answer(json.dumps(value).encode())
    except InvalidAnswer:
        return
    decision = value.get("decision") or value.get("action")
    assert (answer.decision == "deny") == (decision in ("deny", "block"))
    assert (answer.decision == "ask") == (decision in ("ask", "ask_user"))
    assert answer.decision == "continue" or not (answer.data or answer.context)


@pytest.mark.parametrize("name", sorted(FIXED))
def test_ids_of_an_event_cannot_be_changed(name: str) -> None:
    with pytest.raises(InvalidAnswer, match="cannot be changed"):
        read_answer(json.dumps({"data": {name: "other"}}).encode())


@pytest.mark.parametrize("output", [b"", b" \n\t", b"{}", b'{"decision": null}'])
def test_no_opinion(output: bytes) -> None:
    assert read_answer(output) == Answer()


@pytest.mark.parametrize(
    ("output", "reported"),
    [
        (b'{"decision": "deny", "decision": "allow"}', "duplicate key"),
        (b'{"data": {"input": {"command": "a", "command": "b"}}}', "duplicate key"),
        (b'{"data": {"input": {"timeout": NaN}}}', "NaN"),
    ],
)
def test_ambiguous_answers_are_invalid(output: bytes, reported: str) -> None:
    with pytest.raises(InvalidAnswer, match=reported):
        read_answer(output)
