"""A model that repeats itself is warned, then stopped."""

from typing import Any

import pytest

from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool


async def test_the_model_is_warned_then_the_turn_ends(rig: Rig) -> None:
    tool = rig.add_tool(echo_tool())
    rig.replies(*[calls(call(text="same")) for _ in range(9)])

    assert await rig.run() == "No progress: 'echo' had the same result 6 times in a row"
    done = rig.last("orchestrator:complete")
    assert (done["status"], done["reason"]) == ("incomplete", "no_progress")
    assert done["repeated"] == {"tools": ["echo"], "times": 6}
    assert len(tool.inputs) == 6
    texts = [str(d["messages"][-1]["content"]) for d in rig.of("provider:request")]
    assert ["times in a row" in text for text in texts] == [False] * 3 + [True] * 3
    assert "called 3 times in a row" in texts[3]
    assert "the turn ends after 3 more" in texts[3]
    assert "the turn ends after 1 more" in texts[5]
    stored = [message["content"] for message in rig.context.messages if message["role"] == "tool"]
    assert stored == ["SAME"] * 6, "the note to the model is not part of the conversation"


async def test_another_result_is_progress(rig: Rig) -> None:
    count = 0

    async def poll(_: dict[str, Any]) -> str:
        nonlocal count
        count += 1
        return f"{count} of 8 done"

    rig.add_tool(FunctionTool("poll", poll))
    rig.replies(*[calls(call("poll")) for _ in range(8)], "done")
    assert await rig.run() == "done"


async def test_one_new_call_in_an_answer_is_progress(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.replies(*[calls(call(text="same"), call(text=f"{n}")) for n in range(8)], "done")
    assert await rig.run() == "done"


async def test_errors_that_repeat_are_no_progress(rig: Rig) -> None:
    rig.replies(*[calls(call("absent"), call("none")) for _ in range(9)])
    assert (
        await rig.run() == "No progress: 'absent' and 'none' had the same result 6 times in a row"
    )


async def test_it_counts_from_zero_in_the_next_turn(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    same = calls(call(text="same"))
    rig.replies(same, same, "one", same, same, "two")
    assert [await rig.run(), await rig.run()] == ["one", "two"]


@pytest.mark.parametrize(("most", "runs"), [(1, 2), (4, 8)])
async def test_how_often_is_a_setting(rig: Rig, most: int, runs: int) -> None:
    rig.config = {"max_repeats": most}
    tool = rig.add_tool(echo_tool())
    rig.replies(*[calls(call(text="same")) for _ in range(12)])
    assert (await rig.run()).endswith(f"{runs} times in a row")
    assert len(tool.inputs) == runs


async def test_keeping_the_folder_can_be_turned_off(rig: Rig) -> None:
    rig.config = {"max_repeats": 0}
    rig.add_tool(echo_tool())
    rig.replies(*[calls(call(text="same")) for _ in range(20)], "done")
    assert await rig.run() == "done"
