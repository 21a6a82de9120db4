"""Who did what inside what: ids on every event of a turn, and one end for every tool call."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import wait_for
from tests.modules._shared.loop.rig import FunctionTool, Rig, call, calls, echo_tool

IDS = ("session_id", "turn_id", "span_id", "parent_span_id", "iteration")
DATA_OF_CALLS = ("tool_name", "tool_call_id", "tool_input", "input")


def add_tools(rig: Rig) -> None:
    async def boom(_: dict[str, Any]) -> str:
        raise RuntimeError("it broke")

    async def fail(_: dict[str, Any]) -> ToolResult:
        return ToolResult(success=False, error={"message": "no"})

    rig.add_tool(echo_tool())
    rig.add_tool(FunctionTool("boom", boom))
    rig.add_tool(FunctionTool("fail", fail))
    rig.add_tool(FunctionTool("secret", fail))

    def deny(data: dict[str, Any]) -> HookResult | None:
        return HookResult(action="deny", reason="mine") if data["tool_name"] == "secret" else None

    rig.on("tool:pre", deny)


async def test_every_event_of_a_turn_has_all_ids_and_every_span_its_parent(rig: Rig) -> None:
    add_tools(rig)
    overflow = {"error": {"type": "ContextLengthError"}}
    rig.context.messages += [{"role": "user", "content": "x" * 400}] * 20
    whole = rig.context.get_messages_for_request

    async def smaller(token_budget: int | None = None, provider: Any = None) -> Any:
        messages = await whole()
        return messages if token_budget is None else messages[-6:]

    rig.context.get_messages_for_request = smaller  # type: ignore[method-assign]
    rig.plan["session"]["fallbacks"] = ["spare"]
    rig.replies(overflow, calls(call("boom")), {"error": {"type": "RateLimitError"}})
    main = rig.providers.pop("mock")
    rig.replies(calls(call(text="a"), call("absent"), call("secret"), call("fail")), "done")
    rig.providers = {"mock": main, "spare": rig.providers["mock"]}
    rig.config = {"default_provider": "mock"}

    assert await rig.run() == "done"

    names = {name for name, _ in rig.events}
    assert {"context:overflow", "provider:fallback", "tool:error", "provider:error"} <= names
    missing = [(name, key) for name, data in rig.events for key in IDS if key not in data]
    assert missing == []
    assert {data["session_id"] for _, data in rig.events} == {"session-1"}
    assert len({data["turn_id"] for _, data in rig.events}) == 1

    turn = rig.of("prompt:submit")[0]["span_id"]
    requests = {data["span_id"] for data in rig.of("provider:request")}
    assert len(requests) == len(rig.of("provider:request")) == 5
    for name, data in rig.events:
        if name.startswith("tool:"):
            assert data["parent_span_id"] in requests, name
        elif name.startswith(("provider:", "llm:", "content_block:", "context:")):
            assert data["span_id"] in requests, name
            assert data["parent_span_id"] == turn, name
            assert data["iteration"] >= 1, name
        elif name.startswith(("plan:", "step:")):
            assert data["parent_span_id"] == turn, name
        elif name == "tools:offer":
            assert data["span_id"] in requests, name
        else:
            assert data["span_id"] == turn, name
            assert data["parent_span_id"] is None, name
    ends = {data["tool_call_id"]: data["span_id"] for data in rig.of("tool:error")}
    assert len(set(ends.values())) == len(ends), "a span for each call"


async def test_every_call_has_one_end_and_every_error_says_all_there_is_to_say(rig: Rig) -> None:
    add_tools(rig)
    rig.plan["session"]["budget"] = {"max_tool_calls": 7}
    asked = [
        call(text="fine", id="ok"),
        call("fail", id="failed"),
        call("boom", id="raised", why="test"),
        call("absent", id="unknown"),
        call("echo", id="invalid", text=5),
        call("secret", id="denied"),
        call("boom", id="last"),
        call("boom", id="over"),
    ]
    rig.replies(calls(*asked))
    await rig.run()

    posts = [data["tool_call_id"] for data in rig.of("tool:post")]
    errors = {data["tool_call_id"]: data for data in rig.of("tool:error")}
    assert posts == ["ok", "failed"], "a tool that says it failed has ended all the same"
    assert {id: data["error"]["type"] for id, data in errors.items()} == {
        "raised": "RuntimeError",
        "last": "RuntimeError",
        "unknown": "UnknownTool",
        "invalid": "InvalidArguments",
        "denied": "Denied",
        "over": "BudgetReached",
    }
    for id, data in errors.items():
        assert all(key in data for key in (*DATA_OF_CALLS, *IDS)), id
        assert data["error"]["message"], id
        assert data["tool_input"] == data["input"]
    assert errors["raised"]["tool_input"] == {"why": "test"}
    assert Counter([*posts, *errors]) == Counter(c["id"] for c in asked)
    spans = {data["tool_call_id"]: data["span_id"] for data in rig.of("tool:pre")}
    for id, span in spans.items():
        (end,) = [d for d in (*rig.of("tool:post"), *errors.values()) if d["tool_call_id"] == id]
        assert end["span_id"] == span


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("how", ["immediate", "task"])
async def test_calls_that_are_interrupted_or_never_begun_end_as_well(
    rig: Rig, parallel: bool, how: str
) -> None:
    rig.config = {"parallel_tools": parallel}
    began = asyncio.Event()

    async def hang(_: dict[str, Any]) -> str:
        began.set()
        await asyncio.sleep(60)
        return "never"

    rig.add_tool(FunctionTool("hang", hang))
    rig.replies(calls(call("hang", id="a"), call("hang", id="b"), call("hang", id="c")))
    turn = asyncio.create_task(rig.run())
    await asyncio.wait_for(began.wait(), 10)
    if how == "task":
        turn.cancel()
    else:
        await rig.coordinator.request_cancel(immediate=True)
    await asyncio.wait([turn])

    errors = [(d["tool_call_id"], d["error"]["type"]) for d in rig.of("tool:error")]
    assert sorted(errors) == [("a", "Interrupted"), ("b", "Interrupted"), ("c", "Interrupted")]
    assert rig.of("tool:post") == []
    assert all(key in data for data in rig.of("tool:error") for key in IDS)


async def test_a_stop_while_an_approval_is_asked_ends_every_call_once(rig: Rig) -> None:
    asking = asyncio.Event()
    add_tools(rig)

    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        if data["tool_call_id"] == "second":
            asking.set()
            await asyncio.sleep(60)
        return HookResult()

    rig.coordinator.hooks.register("tool:pre", ask, name="slow")
    rig.replies(
        calls(
            call("absent", id="unknown"),
            call(text="x", id="first"),
            call(text="y", id="second"),
            call(text="z", id="third"),
        )
    )
    turn = asyncio.create_task(rig.run())
    assert await wait_for(asking.is_set, timeout=10)
    await rig.coordinator.request_cancel(immediate=True)
    await asyncio.wait([turn])

    errors = [(d["tool_call_id"], d["error"]["type"]) for d in rig.of("tool:error")]
    assert errors == [
        ("unknown", "UnknownTool"),
        ("first", "Interrupted"),
        ("second", "Interrupted"),
        ("third", "Interrupted"),
    ]
    assert list(rig.context.results()) == ["unknown", "first", "second", "third"]
