"""Messages are saved as the context receives them; unanswered calls are answered on resume."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from amplifier_app.sessions.recording_context import (
    INTERRUPTED,
    RecordingContext,
    answers_to_interrupted,
    is_unbegun,
    not_in,
)
from amplifier_core.interfaces import ContextManager


class ListContext:
    """A context manager that is a list."""

    compacted = "yes"

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        if "role" not in message:
            raise ValueError("no role")
        self.messages.append(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        return self.messages[-(token_budget or 100) :]

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


@pytest.fixture
def saved() -> list[dict[str, Any]]:
    return []


def saving_to(saved: list[dict[str, Any]]) -> Callable[[dict[str, Any]], Awaitable[None]]:
    async def save(record: dict[str, Any]) -> None:
        saved.append(record)

    return save


@pytest.fixture
def context(saved: list[dict[str, Any]]) -> RecordingContext:
    return RecordingContext(ListContext(), saving_to(saved))


async def test_messages_are_saved_as_they_are_added(
    context: RecordingContext, saved: list[dict[str, Any]]
) -> None:
    await context.add_message({"role": "user", "content": "a"})
    assert saved == await context.get_messages() == [{"role": "user", "content": "a"}]


async def test_a_message_the_context_refuses_is_not_saved(
    context: RecordingContext, saved: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValueError, match="no role"):
        await context.add_message({"content": "a"})
    assert saved == []


async def test_clearing_and_replacing_are_saved_too(
    context: RecordingContext, saved: list[dict[str, Any]]
) -> None:
    await context.add_message({"role": "user", "content": "a"})
    await context.set_messages([{"role": "user", "content": "b"}])
    await context.clear()
    assert saved == [
        {"role": "user", "content": "a"},
        {"control": "replace", "messages": [{"role": "user", "content": "b"}]},
        {"control": "clear"},
    ]


async def test_everything_else_is_delegated_to_the_inner_context(context: RecordingContext) -> None:
    assert isinstance(context, ContextManager)
    assert context.compacted == "yes"
    await context.add_message({"role": "user", "content": "a"})
    await context.add_message({"role": "user", "content": "b"})
    assert await context.get_messages_for_request(token_budget=1) == [
        {"role": "user", "content": "b"}
    ]


def call(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": f"t{i}", "arguments": "{}"}}
            for i in ids
        ],
    }


def test_only_the_calls_without_result_are_answered() -> None:
    history = [
        {"role": "user", "content": "go"},
        call("1", "2", "3"),
        {"role": "tool", "tool_call_id": "2", "content": "done"},
    ]
    assert answers_to_interrupted(history) == [
        {"role": "tool", "tool_call_id": "1", "name": "t1", "content": INTERRUPTED},
        {"role": "tool", "tool_call_id": "3", "name": "t3", "content": INTERRUPTED},
    ]


def test_messages_inserted_by_hooks_hide_no_call() -> None:
    history = [
        call("1", "2"),
        {"role": "tool", "tool_call_id": "1", "content": "done"},
        {"role": "system", "content": "mind the gap"},
        {"role": "user", "content": "lint failed", "metadata": {"source": "hook"}},
    ]
    assert [answer["tool_call_id"] for answer in answers_to_interrupted(history)] == ["2"]


def test_block_form_is_understood_as_well() -> None:
    history = [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_call", "id": "1", "name": "t1", "input": {}},
                {"type": "tool_call", "id": "2", "name": "t2", "input": {}},
            ],
        },
        {"role": "function", "content": [{"type": "tool_result", "tool_call_id": "1"}]},
    ]
    assert [answer["tool_call_id"] for answer in answers_to_interrupted(history)] == ["2"]


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"role": "user", "content": "a"}],
        [{"role": "assistant", "content": "a"}],
        [call("1"), {"role": "tool", "tool_call_id": "1", "content": ""}],
        [call("1"), {"role": "user", "content": "later"}],
        [call("1"), {"role": "user", "content": "later", "metadata": {"source": "me"}}],
    ],
)
def test_a_finished_history_needs_no_answers(history: list[dict[str, Any]]) -> None:
    assert answers_to_interrupted(history) == []


class OwnFile(ListContext):
    """A context that holds what its own file says, whatever it is given."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        super().__init__()
        self.messages = list(messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        pass


async def test_messages_that_the_context_rejects_are_not_saved_as_accepted(
    saved: list[dict[str, Any]],
) -> None:
    context = RecordingContext(OwnFile(A), saving_to(saved))
    await context.set_messages([B])
    assert saved == [{"control": "replace", "messages": [A]}]


SYSTEM = {"role": "system", "content": "be brief"}
NOTE = {"role": "system", "content": "use tabs"}
A, B, C = ({"role": "user", "content": text} for text in "abc")


@pytest.mark.parametrize(
    ("saved", "held", "owed"),
    [
        ([], [], []),
        ([A, B], [A, B], []),
        ([A, B], [{**A, "timestamp": 1}, B], []),
        ([A, B, C], [B], []),
        ([A, B], [], [{"control": "clear"}]),
        ([A], [A, B, C], [B, C]),
        ([], [A], [A]),
        ([A, A], [A, A, A], [A]),
        ([A, B], [A, C, B], [{"control": "replace", "messages": [A, C, B]}]),
        ([A], [NOTE, A], []),
        ([A], [NOTE, A, B], [B]),
        ([A], [A, NOTE], [NOTE]),
        ([], [NOTE], [NOTE]),
        ([A, B], [C], [{"control": "replace", "messages": [C]}]),
    ],
)
def test_messages_held_only_by_the_context_are_added_to_the_transcript(
    saved: Any, held: Any, owed: Any
) -> None:
    assert not_in(saved, held) == owed


@pytest.mark.parametrize(
    ("held", "unbegun"),
    [([], True), ([NOTE], True), ([SYSTEM], False), ([NOTE, SYSTEM], False), ([NOTE, A], False)],
)
def test_an_instruction_is_added_once_even_after_other_notes(held: Any, unbegun: bool) -> None:
    assert is_unbegun("be brief", held) is unbegun
