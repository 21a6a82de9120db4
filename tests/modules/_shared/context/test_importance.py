"""The strategy `importance`: what of the older messages a view keeps."""

import json
from typing import Any

import pytest

from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import (
    answers,
    answers_in_blocks,
    assistant,
    filler,
    size,
    user,
)


def calls(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def calls_in_blocks(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_call", "id": call_id, "name": name, "input": arguments}
    return {"role": "assistant", "content": [block]}


def did(call_id: str, name: str, result: str = "r" * 400, **arguments: Any) -> list[dict[str, Any]]:
    return [calls(call_id, name, **arguments), answers(call_id, result)]


async def request_view(
    messages: list[Any], budget: int = 2_000, **more: Any
) -> list[dict[str, Any]]:
    settings = {"strategy": "importance", "compaction_threshold": 1.0, "keep_recent_turns": 1}
    context = SimpleContextManager({**settings, **more})
    await context.set_messages(messages)
    view = await context.get_messages_for_request(token_budget=budget)
    assert size(view) <= budget
    assert [message for message in messages if message in view] == view
    return view


def steps(number: int, start: int = 0) -> list[dict[str, Any]]:
    """Tool calls that look at something, each 104 estimated tokens and more."""
    return [m for n in range(start, start + number) for m in did(f"c{n}", "look", what=n)]


async def test_what_the_user_said_outlasts_what_was_looked_at():
    wish = user("never touch the tests, because " + "b" * 700)
    messages = [user("go"), *steps(20), wish, *steps(60, 20), user("now")]
    assert wish in await request_view(messages)
    assert wish not in await request_view(messages, strategy="truncate")


@pytest.mark.parametrize(
    "group",
    [
        did("x", "bash", "Error: no such file" + "x" * 400),
        [calls("x", "bash"), {**answers("x", "r" * 400), "is_error": True}],
        did("x", "write_file", path="src/a.py"),
        [calls_in_blocks("x", "str_replace", path="b"), answers_in_blocks("x", "r" * 400)],
    ],
    ids=["failed by its text", "failed by its flag", "changed a file", "changed, as blocks"],
)
async def test_failures_and_changes_outlast_looks(group):
    messages = [user("go"), *steps(10), *group, *steps(50, 10), user("now")]
    view = await request_view(messages)
    assert all(message in view for message in group)


async def test_a_change_counts_for_longer_when_its_file_is_named_again():
    change = did("x", "write_file", path="src/a.py")
    later = user("how is src/a.py doing?")
    before, after = steps(80), steps(10, 80)
    assert change[0] in await request_view(
        [user("go"), *change, *before, later, *after, user("now")]
    )
    other = user("how is src/b.py doing?")
    view = await request_view([user("go"), *change, *before, other, *after, user("now")])
    assert change[0] not in view


async def test_a_look_at_a_file_gives_way_to_a_later_look_at_it():
    first, second = did("x", "read_file", path="a.py"), did("y", "read_file", path="a.py")
    other = did("z", "read_file", path="b.py")
    view = await request_view(
        [user("go"), *steps(14), *first, *other, *second, *steps(4, 14), user("now")]
    )
    assert first[0] not in view
    assert second[0] in view
    assert other[0] in view


async def test_what_hooks_put_in_is_left_out_first():
    note = {"role": "user", "content": "n" * 200, "metadata": {"source": "hook"}}
    view = await request_view([user("go"), *filler(12), note, user("now")])
    assert note not in view
    assert len(view) > 8


async def test_scores_follow_the_conversation():
    context = SimpleContextManager(strategy="importance", compaction_threshold=1.0)
    wish = user("never touch the tests, because " + "b" * 700)
    for message in [user("go"), *steps(20), wish]:
        await context.add_message(message)
    await context.get_messages_for_request(token_budget=1_000)
    for message in [*steps(50, 20), user("now"), assistant("done")]:
        await context.add_message(message)
        view = await context.get_messages_for_request(token_budget=2_000)
    assert wish in view
    await context.set_messages([user("new"), *filler(30)])
    view = await context.get_messages_for_request(token_budget=2_000)
    assert wish not in view
    assert view[0] == user("new")


async def test_what_is_superseded_between_two_views_is_left_out_of_the_second():
    context = SimpleContextManager(
        strategy="importance", compaction_threshold=1.0, keep_recent_turns=1
    )
    first = did("x", "read_file", path="a.py")
    for message in [user("go"), *steps(20), *first, *steps(2, 20), user("now")]:
        await context.add_message(message)
    assert first[0] in await context.get_messages_for_request(token_budget=2_000)
    for message in [*did("y", "read_file", path="a.py"), *steps(8, 22), user("then")]:
        await context.add_message(message)
    view = await context.get_messages_for_request(token_budget=3_100)
    assert first[0] not in view
    assert steps(1, 20)[0] in view
