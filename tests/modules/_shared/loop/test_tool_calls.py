"""Tool calls: run side by side, answered in order, and never twice."""

import asyncio
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall
from amplifier_core.models import ToolResult
from amplifier_core.testing import wait_for
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool


def returning(value: Any) -> FunctionTool:
    async def give(_: dict[str, Any]) -> Any:
        return value

    return FunctionTool("give", give)


async def test_parallel_calls_overlap_and_results_keep_call_order(rig: Rig) -> None:
    second_ran = asyncio.Event()

    async def first(_: dict[str, Any]) -> str:
        await second_ran.wait()  # would never end if the calls ran one after the other
        return "first"

    async def second(_: dict[str, Any]) -> str:
        second_ran.set()
        return "second"

    rig.add_tool(FunctionTool("first", first))
    rig.add_tool(FunctionTool("second", second))
    rig.replies(calls(call("first", id="a"), call("second", id="b")), "done")

    await rig.run()

    assert list(rig.context.results().items()) == [("a", "first"), ("b", "second")]
    assert [data["tool_call_id"] for data in rig.of("tool:post")] == ["b", "a"]


async def test_a_result_is_stored_while_later_calls_still_run(rig: Rig) -> None:
    stored: list[dict[str, Any]] = []

    async def quick(_: dict[str, Any]) -> str:
        return "quick"

    async def slow(_: dict[str, Any]) -> str:
        await wait_for(lambda: bool(rig.context.results()))
        stored.append(dict(rig.context.results()))
        return "slow"

    rig.add_tool(FunctionTool("quick", quick))
    rig.add_tool(FunctionTool("slow", slow))
    rig.replies(calls(call("quick", id="a"), call("slow", id="b")), "done")

    await rig.run()

    assert stored == [{"a": "quick"}]


async def test_unknown_tool_is_answered_with_what_there_is(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    rig.replies(calls(call("ecco", id="c1", text="a")), "sorry")

    assert await rig.run() == "sorry"

    assert rig.context.results() == {"c1": "Error: unknown tool 'ecco'; available tools: echo"}
    assert rig.last("tool:error")["error"]["type"] == "UnknownTool"
    assert rig.of("tool:pre") == []


@pytest.mark.parametrize(
    ("input", "said"),
    [({}, "'text' is a required property"), ({"text": 5}, "text: 5 is not of type 'string'")],
)
async def test_invalid_arguments_are_answered_without_running(
    rig: Rig, input: dict[str, Any], said: str
) -> None:
    tool = rig.add_tool(echo_tool())
    rig.replies(calls({"name": "echo", "id": "c1", "input": input}), "sorry")

    assert await rig.run() == "sorry"

    assert tool.inputs == []
    assert rig.context.results() == {"c1": f"Error: invalid arguments for tool 'echo': {said}"}
    assert rig.of("tool:pre") == []
    assert rig.last("tool:error")["error"]["type"] == "InvalidArguments"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [('{"text": ', "not valid JSON"), ("[1]", "must be a JSON object, not list"), (7, "not int")],
)
async def test_dictionary_calls_with_odd_arguments_are_answered(
    rig: Rig, arguments: Any, said: str
) -> None:
    tool = rig.add_tool(FunctionTool("free", echo_tool().execute))
    rig.replies({"text": "x", "finish_reason": "tool_calls"}, "sorry")
    provider = rig.providers["mock"]
    answers: list[list[Any]] = [[{"id": "c1", "name": "free", "arguments": arguments}], []]
    provider.parse_tool_calls = lambda response: answers.pop(0)

    assert await rig.run() == "sorry"
    assert tool.inputs == []
    assert said in rig.context.results()["c1"]


async def test_a_tool_that_raises_is_answered_and_reported(rig: Rig) -> None:
    async def broken(_: dict[str, Any]) -> None:
        raise RuntimeError("disk on fire")

    rig.add_tool(FunctionTool("broken", broken))
    rig.replies(calls(call("broken", id="c1")), "sorry")

    assert await rig.run() == "sorry"

    said = "tool 'broken' failed: RuntimeError: disk on fire"
    assert rig.context.results() == {"c1": f"Error: {said}"}
    assert rig.last("tool:error")["error"] == {"type": "RuntimeError", "message": said}
    assert [n for n in rig.names() if n.startswith("tool:")] == ["tool:pre", "tool:error"]


async def test_a_tool_that_cancels_itself_is_a_failed_tool(rig: Rig) -> None:
    async def confused(_: dict[str, Any]) -> None:
        raise asyncio.CancelledError("inner")

    rig.add_tool(FunctionTool("confused", confused))
    rig.replies(calls(call("confused", id="c1")), "sorry")

    assert await rig.run() == "sorry"
    assert rig.context.results() == {"c1": "Error: tool 'confused' failed: CancelledError: inner"}


class _Odd:
    def __str__(self) -> str:
        return "an odd thing"


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("text", "text"),
        ({"a": 1}, '{"a": 1}'),
        ([1, 2], "[1, 2]"),
        (0, "0"),
        ({"success": False, "output": "no"}, "no"),
        (ToolResult(output={"when": _Odd(), "cost": Decimal("1.5")}), None),
        (ToolResult(output="a\x1b[31mb\ud800c"), "abc"),
    ],
)
async def test_whatever_a_tool_returns_becomes_a_message(
    rig: Rig, returned: Any, content: str | None
) -> None:
    rig.add_tool(returning(returned))
    rig.replies(calls(call("give", id="c1")), "done")

    await rig.run()

    if content is None:
        content = '{"when": "an odd thing", "cost": "1.5"}'
    assert rig.context.results() == {"c1": content}
    result = rig.last("tool:post")["result"]
    assert json.loads(json.dumps(result)) == result
    assert result.success is result["success"]


async def test_images_in_a_result_stay_blocks(rig: Rig) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }
    rig.add_tool(returning(ToolResult(output="a picture", content=[image])))
    rig.replies(calls(call("give", id="c1")), "done")

    await rig.run()

    assert rig.context.results()["c1"] == [{"type": "text", "text": "a picture"}, image]


async def test_a_synchronous_tool_works_too(rig: Rig) -> None:
    class Sync:
        name = "sync"
        description = ""

        def execute(self, input: dict[str, Any]) -> str:
            return "ran"

    rig.add_tool(Sync())
    rig.replies(calls(call("sync", id="c1")), "done")
    await rig.run()
    assert rig.context.results() == {"c1": "ran"}


async def test_a_tool_cannot_change_what_is_remembered_of_its_input(rig: Rig) -> None:
    async def destructive(input: dict[str, Any]) -> str:
        input["list"].clear()
        input.pop("text")
        return "ok"

    rig.add_tool(FunctionTool("destructive", destructive))
    rig.replies(calls(call("destructive", text="a", list=[1])), "done")

    await rig.run()

    assert rig.context.messages[1]["content"][0]["input"] == {"text": "a", "list": [1]}
    assert rig.last("tool:post")["tool_input"] == {"text": "a", "list": [1]}


class TestOncePerCallId:
    async def test_a_repeated_call_in_one_answer_runs_once(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        twice = call(id="c1", text="a")
        rig.replies(calls(twice, twice), "done")

        await rig.run()

        assert tool.inputs == [{"text": "a"}]
        blocks = rig.context.messages[1]["content"]
        assert [block["id"] for block in blocks] == ["c1"]
        assert len(rig.context.messages[1]["tool_calls"]) == 1
        assert rig.context.roles() == ["user", "assistant", "tool", "assistant"]

    async def test_different_calls_under_one_id_are_distinguished(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        rig.replies(calls(call(id="call_0", text="a"), call(id="call_0", text="b")), "done")

        await rig.run()

        assert tool.inputs == [{"text": "a"}, {"text": "b"}]
        results = rig.context.results()
        assert sorted(results.values()) == ["A", "B"]
        message = rig.context.messages[1]
        assert [b["id"] for b in message["content"]] == list(results)
        assert [c["id"] for c in message["tool_calls"]] == list(results)

    async def test_the_same_call_in_a_later_answer_is_answered_but_not_run(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        same = calls(call(id="call_1", text="a"))
        provider = rig.replies(same, same, same, "done")

        assert await rig.run() == "done"

        assert tool.inputs == [{"text": "a"}]
        results = rig.context.results()
        assert len(results) == 3
        first, *again = results.values()
        assert first == "A"
        assert all(text.startswith("(Not run again") and text.endswith("\nA") for text in again)
        assert [e["error"]["type"] for e in rig.of("tool:error")] == ["RepeatedCall"] * 2
        assert provider.requests[-1].repairs == ()

    async def test_a_repeated_failure_stays_a_failure(self, rig: Rig) -> None:
        async def fail(_: dict[str, Any]) -> str:
            raise RuntimeError("broken")

        tool = rig.add_tool(FunctionTool("fail", fail))
        same = calls(call("fail", id="call_1"))
        rig.replies(same, same, "done")

        await rig.run()

        assert len(tool.inputs) == 1
        assert [m.get("is_error") for m in rig.context.messages if m["role"] == "tool"] == [
            True
        ] * 2

    async def test_another_call_under_a_used_id_is_run(self, rig: Rig) -> None:
        """As with services that number the calls of each answer from zero."""
        tool = rig.add_tool(echo_tool())
        inputs = ["test", "edit", "test", "test"]
        provider = rig.replies(*[calls(call(id="call_0", text=t)) for t in inputs], "done")

        await rig.run()

        assert [i["text"] for i in tool.inputs] == inputs
        assert len(rig.context.results()) == 4
        assert provider.requests[-1].repairs == ()

    async def test_the_next_turn_may_use_the_same_id(self, rig: Rig) -> None:
        tool = rig.add_tool(echo_tool())
        same = calls(call(id="call_0", text="a"))
        rig.replies(same, "one", same, "two")

        assert [await rig.run(), await rig.run()] == ["one", "two"]
        assert tool.inputs == [{"text": "a"}] * 2

    async def test_calls_without_an_id_get_one(self, rig: Rig) -> None:
        rig.add_tool(echo_tool())
        rig.replies("asks", "done")
        nameless = [{"name": "echo", "input": {"text": t}} for t in ("a", "b")]
        answers: list[list[Any]] = [nameless, []]
        rig.providers["mock"].parse_tool_calls = lambda response: answers.pop(0)

        await rig.run()

        ids = [c["id"] for c in rig.context.messages[1]["tool_calls"]]
        assert len(set(ids)) == 2
        assert all(ids)
        assert list(rig.context.results().values()) == ["A", "B"]

    async def test_calls_without_a_block_get_one(self, rig: Rig) -> None:
        class ListsOnly:
            name = "lists"

            async def complete(self, request: Any) -> ChatResponse:
                if request.messages[-1].role == "tool":
                    return ChatResponse(content=[TextBlock(text="done")])
                asked = ToolCall(id="c1", name="echo", arguments={"text": "a"})
                return ChatResponse(content=[TextBlock(text="asking")], tool_calls=[asked])

            def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
                return response.tool_calls or []

        rig.add_tool(echo_tool())
        rig.providers["lists"] = ListsOnly()

        assert await rig.run() == "done"
        assert rig.context.messages[1]["content"] == [
            {"type": "text", "text": "asking"},
            {"type": "tool_call", "id": "c1", "name": "echo", "input": {"text": "a"}},
        ]


async def test_tools_in_flight_are_registered_with_the_cancellation_token(rig: Rig) -> None:
    token = rig.coordinator.cancellation
    seen: list[set[str]] = []

    async def look(_: dict[str, Any]) -> str:
        seen.append(token.running_tools)
        return "ok"

    async def fail(_: dict[str, Any]) -> str:
        raise RuntimeError

    rig.add_tool(FunctionTool("look", look))
    rig.add_tool(FunctionTool("fail", fail))
    rig.replies(calls(call("look", id="a"), call("fail", id="b")), "done")

    await rig.run()

    assert "a" in seen[0]
    assert token.running_tools == set()


def test_jsonschema_is_imported_only_where_it_is_needed() -> None:
    """A turn with valid calls of an ordinary tool does not pay for the import."""
    program = """
import asyncio, sys
from tests.modules._shared.loop.rig import Rig, call, calls, echo_tool
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator
rig = Rig(BasicOrchestrator)
rig.add_tool(echo_tool())
rig.replies(calls(call(text="a")), "done")
asyncio.run(rig.run())
assert rig.context.messages[2]["content"] == "A"
print("jsonschema" in sys.modules)
"""
    root = Path(__file__).parents[4]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
