"""What a compacted view keeps, whatever the conversation and the budget."""

from typing import Any

from amplifier_core.message_models import Message, TextBlock
from amplifier_modules._shared.history.values import call_ids, result_ids
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import (
    answers,
    answers_in_blocks,
    asks,
    assistant,
    filler,
    size,
    user,
)


async def request_view(messages: list[Any], budget: int, **config: Any) -> list[dict[str, Any]]:
    """What a request gets of `messages`; the threshold is the whole budget."""
    context = SimpleContextManager(**{"compaction_threshold": 1.0, **config})
    await context.set_messages(messages)
    return await context.get_messages_for_request(token_budget=budget)


def unpaired(messages: list[dict[str, Any]]) -> set[str]:
    calls = {i for message in messages for i in call_ids(message)}
    return {i for message in messages for i in result_ids(message)} ^ calls


async def test_the_sample_conversation_of_the_contract_keeps_its_pair_whole():
    context = SimpleContextManager(max_tokens=100, compaction_threshold=0.5)
    await context.add_message(user("Read file.txt"))
    await context.add_message(asks("call_123"))
    await context.add_message(answers("call_123", "File contents..."))
    for number in range(50):
        await context.add_message(user(f"Message {number}"))
    view = await context.get_messages_for_request()
    assert unpaired(view) == set()
    assert 4 <= len(view) < 53
    assert view[-1] == user("Message 49")


async def test_system_messages_piled_up_by_hooks_do_not_fill_the_room():
    metadata = {"source": "hook"}
    notes = [{"role": "system", "content": "n" * 400, "metadata": metadata} for _ in range(100)]
    own = {"role": "system", "content": "be brief"}
    for messages in ([own, *notes, *filler(10)], [own, *filler(10), *notes]):
        view = await request_view(messages, 2_000)
        assert view[0] is own
        kept = [message for message in view if message.get("metadata")]
        assert kept[0] is notes[-len(kept)]
        assert 800 < size(kept) <= 1_000
        assert [m for m in view if m["role"] == "user"][-1]["content"].startswith("0009")
        assert size(view) <= 2_000


async def test_a_number_of_recent_messages_can_be_kept_instead_of_turns():
    calls = [asks("a", "b"), answers("a"), answers("b")]
    messages = [*filler(30), user("go"), *calls, assistant("done")]
    view = await request_view(messages, 500, keep_recent=2)
    assert view[-4:] == [*calls, assistant("done")]  # half a group is none


async def test_a_message_a_hook_puts_in_as_user_does_not_begin_a_turn():
    note = {"role": "user", "content": "note", "metadata": {"source": "hook"}}
    calls = [asks("c"), answers("c", "x" * 1_400)]
    messages = [*filler(30), user("go"), *calls, note, assistant("done")]
    view = await request_view(messages, 500, keep_recent_turns=1)
    assert view[-5:] == messages[-5:]


async def test_groups_joined_by_one_message_of_results_stay_together():
    both = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "1"},
            {"type": "tool_result", "tool_use_id": "b", "content": "2"},
        ],
    }
    late = answers_in_blocks("b", "again")
    messages = [user("go"), asks("a"), asks("b"), both, late, *filler(20)]
    for budget in range(100, 4_000, 150):
        assert unpaired(await request_view(messages, budget)) == set()


async def test_a_result_bigger_than_the_budget_is_shortened_in_a_copy():
    big = answers("c", "begin" + "x" * 100_000 + "end")
    view = await request_view([user("read it"), asks("c"), big], 2_000)
    assert [m["role"] for m in view] == ["user", "assistant", "tool"]
    text = view[2]["content"]
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "characters removed to fit the context window" in text
    assert 1_000 < size(view) <= 2_000
    assert len(big["content"]) == 100_008


async def test_of_parallel_results_the_big_ones_give_way_and_the_small_stay_whole():
    small = answers("b", "y" * 400)
    results = [answers("a", "x" * 100_000), small, answers_in_blocks("c", "z" * 50_000)]
    view = await request_view([user("go"), asks("a", "b", "c"), *results], 3_000)
    assert view[3] is small
    assert "removed to fit" in view[2]["content"]
    assert "removed to fit" in view[4]["content"][0]["output"]
    assert view[4]["content"][0]["tool_call_id"] == "c"
    assert size(view) <= 3_000


async def test_a_huge_result_some_steps_ago_is_shortened_rather_than_forgotten():
    steps = [m for n in range(3) for m in (asks(f"c{n}"), answers(f"c{n}", "x" * 40))]
    messages = [user("go"), asks("big"), answers("big", "x" * 100_000), *steps]
    view = await request_view(messages, 4_000)
    assert [m.get("tool_call_id") for m in view] == [m.get("tool_call_id") for m in messages]
    assert size(view) <= 4_000


async def test_a_prompt_bigger_than_the_budget_is_shortened_too():
    view = await request_view([*filler(3), user("x" * 100_000)], 2_000)
    assert "removed to fit" in view[-1]["content"]
    assert size(view) <= 2_000


async def test_thinking_and_calls_are_never_shortened():
    blocks = [
        {"type": "thinking", "thinking": "t" * 2_000, "signature": "s"},
        {"type": "text", "text": "w" * 20_000},
        {"type": "tool_call", "id": "c", "name": "read", "input": {"path": "p" * 2_000}},
    ]
    message = {"role": "assistant", "content": blocks}
    view = await request_view([user("go"), message, answers("c", "x" * 20_000)], 3_000)
    assert [view[1]["content"][n] for n in (0, 2)] == [blocks[0], blocks[2]]
    assert "removed to fit" in view[1]["content"][1]["text"]
    assert message["content"] is blocks


async def test_every_kind_of_content_can_be_shortened():
    odd = [
        answers("a", {"lines": ["x" * 20_000]}),  # type: ignore[arg-type]
        answers_in_blocks("b", {"lines": ["x" * 20_000]}),  # type: ignore[arg-type]
        answers("c", ["small", "x" * 20_000, {"type": "text", "text": "y" * 20_000}]),  # type: ignore[arg-type]
        answers("d", None),  # type: ignore[arg-type]
        {"role": "function", "content": [answers_in_blocks("e", None)["content"][0], "z" * 8_000]},  # type: ignore[arg-type]
    ]
    view = await request_view([user("go"), asks("a", "b", "c", "d", "e"), *odd], 3_000)
    assert len(view) == 7
    assert view[5] is odd[3]
    assert view[6]["content"][0]["output"] is None
    assert 1_500 < size(view) <= 3_000


async def test_images_that_do_not_fit_are_named():
    image = {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}}
    view = await request_view([user("look"), asks("c"), answers("c", [image] * 10)], 4_000)  # type: ignore[arg-type]
    assert view[2]["content"][0] == image
    assert view[2]["content"][-1]["text"] == "[image removed to fit the context window]"


async def test_typed_messages_can_be_stored_and_shortened():
    typed = Message(role="user", content=[TextBlock(text="x" * 100_000)])
    view = await request_view([*filler(3), typed], 2_000)
    assert "removed to fit" in view[-1]["content"][0]["text"]


async def test_a_late_result_joins_a_view_only_with_its_call():
    context = SimpleContextManager(max_tokens=1_500, compaction_threshold=1.0)
    old = asks("old", text="x" * 8_000)
    await context.set_messages([old, *filler(30), user("go"), asks("new")])
    view = await context.get_messages_for_request()
    assert old not in view
    for message in (answers("old"), answers("absent"), answers("new")):
        await context.add_message(message)
    assert await context.get_messages_for_request() == [*view, answers("new")]
