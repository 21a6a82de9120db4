"""What is said to a turn while it runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from amplifier_core.models import HookResult
from amplifier_core.testing import MockCoordinator
from amplifier_extras import loop_events
from amplifier_modules import loop_basic, loop_streaming
from tests.modules._shared.loop.rig import FunctionTool, ListContext, Rig, call, calls, echo_tool
from tests.modules._shared.loop.test_over_http import asks, provided
from tests.support.llm_server import ScriptedLLM

dialect = pytest.fixture(params=["anthropic", "openai"])(lambda request: request.param)


def steering_tool(rig: Rig, *texts: str, name: str = "echo") -> FunctionTool:
    """A tool during which `texts` are queued."""

    async def run(_: dict[str, Any]) -> str:
        for text in texts:
            rig.loop.steer(text)
        return "ran"

    return rig.add_tool(FunctionTool(name, run))


def said(rig: Rig) -> list[tuple[str, Any]]:
    """Roles of the conversation, with the text of what the user said."""
    return [
        (m["role"], m["content"] if m["role"] == "user" else None) for m in rig.context.messages
    ]


@pytest.mark.parametrize("module", [loop_basic, loop_streaming, loop_events])
async def test_mounting_registers_the_capability(module: Any) -> None:
    coordinator = MockCoordinator()
    await module.mount(coordinator, {})
    steer = coordinator.get_capability("session.steer")
    assert steer("turn left") is None
    assert steer is coordinator.get("orchestrator").steer
    assert steer.waiting() == steer.take_back() == ["turn left"]
    events = await coordinator.collect_contributions("observability.events")
    assert any("steer:injected" in names for names in events)


async def test_texts_follow_the_results_and_precede_the_next_request(rig: Rig) -> None:
    steering_tool(rig, "first", "second")
    rig.replies(calls(call(id="a"), call("echo", id="b")), "done")
    rig.config["parallel_tools"] = False

    assert await rig.run("go") == "done"

    assert said(rig) == [
        ("user", "go"),
        ("assistant", None),
        ("tool", None),
        ("tool", None),
        ("user", "first"),
        ("user", "second"),
        ("user", "first"),
        ("user", "second"),
        ("assistant", None),
    ]
    assert [d["text"] for d in rig.of("steer:injected")] == ["first", "second"] * 2
    assert [d["waiting"] for d in rig.of("steer:injected")] == [3, 2, 1, 0]
    assert rig.loop.steer.take_back() == []


async def test_the_event_carries_ids(rig: Rig) -> None:
    steering_tool(rig, "one", "two")
    rig.replies(calls(call()), "done")
    await rig.run()

    complete, (one, two) = rig.last("orchestrator:complete"), rig.of("steer:injected")
    for reported in (one, two):
        assert reported["turn_id"] == complete["turn_id"]
        assert reported["span_id"] == complete["span_id"]
        assert (reported["session_id"], reported["iteration"]) == ("session-1", 2)
    assert one["steer_id"] != two["steer_id"]


async def test_a_text_during_the_final_answer_lets_the_turn_go_on(rig: Rig) -> None:
    rig.replies("the answer", "the other answer")
    steer_once(rig, "content_block:end", "and the other?")

    assert await rig.run("go") == "the other answer"

    assert said(rig) == [
        ("user", "go"),
        ("assistant", None),
        ("user", "and the other?"),
        ("assistant", None),
    ]
    assert rig.last("orchestrator:complete")["turn_count"] == 2
    assert len(rig.of("orchestrator:complete")) == 1


def steer_once(rig: Rig, event: str, text: str) -> None:
    """Queue `text` when `event` is first emitted."""
    texts = [text]
    rig.on(event, lambda _: rig.loop.steer(texts.pop()) if texts else None)


async def test_at_the_limit_the_answer_counts_and_the_text_is_given_back(rig: Rig) -> None:
    rig.config["max_iterations"] = 1
    rig.replies("the answer")
    steer_once(rig, "content_block:end", "and then?")

    assert await rig.run() == "the answer"

    assert rig.last("orchestrator:complete")["status"] == "success"
    assert rig.loop.steer.take_back() == ["and then?"]


@pytest.mark.parametrize("event", ["prompt:complete", "orchestrator:complete"])
async def test_what_comes_too_late_is_given_back(rig: Rig, event: str) -> None:
    rig.replies("the answer")
    steer_once(rig, event, "too late")
    assert await rig.run() == "the answer"
    assert rig.loop.steer.take_back() == ["too late"]
    assert rig.loop.steer.take_back() == []


async def test_texts_not_taken_back_are_sent_with_the_next_turn(rig: Rig) -> None:
    rig.replies("one", "two")
    loop = rig.loop
    loop.steer("from before")
    rig.make_loop = lambda: loop  # type: ignore[method-assign]
    await rig.run("go")
    assert said(rig)[:2] == [("user", "go"), ("user", "from before")]


async def test_an_error_gives_back_what_was_queued(rig: Rig) -> None:
    steering_tool(rig, "one", "two")
    rig.replies(calls(call()))
    rig.on("tool:post", HookResult(action="continue"))

    class Full(ListContext):
        async def add_message(self, message: dict[str, Any]) -> None:
            if message["content"] == "two":
                raise OSError("disk full")
            await super().add_message(message)

    rig.context = Full()
    with pytest.raises(OSError, match="disk full"):
        await rig.run()
    assert rig.loop.steer.take_back() == ["two"]


async def test_cancelling_gives_back_what_was_queued(rig: Rig) -> None:
    started = asyncio.Event()

    async def hang(_: dict[str, Any]) -> str:
        started.set()
        await asyncio.sleep(3600)
        return "never"

    rig.add_tool(FunctionTool("hang", hang))
    rig.replies(calls(call("hang")), "never")
    turn = asyncio.create_task(rig.run())
    await started.wait()
    rig.loop.steer("stop that")
    await rig.coordinator.request_cancel(immediate=True)
    assert await turn == ""
    assert rig.loop.steer.take_back() == ["stop that"]
    assert rig.context.roles() == ["user", "assistant", "tool"]


async def test_a_hook_may_change_the_text(rig: Rig) -> None:
    steering_tool(rig, "use password hunter2")
    rig.replies(calls(call()), "done")
    rig.on(
        "steer:injected",
        lambda data: HookResult(action="modify", data={**data, "text": "use password ***"}),
    )
    await rig.run("go")
    assert ("user", "use password ***") in said(rig)


async def test_a_hook_may_refuse_the_text_and_with_it_the_turn(rig: Rig) -> None:
    steering_tool(rig, "something bad", "something else")
    rig.replies(calls(call()), "never")
    rig.on("steer:injected", HookResult(action="deny", reason="not that"))
    assert await rig.run("go") == "Denied: not that"
    assert said(rig) == [("user", "go"), ("assistant", None), ("tool", None)]
    assert rig.loop.steer.take_back() == ["something else"]


def test_only_text_can_be_said(rig: Rig) -> None:
    with pytest.raises(TypeError, match="expects a str, got dict"):
        rig.loop.steer({"text": "hello"})  # type: ignore[arg-type]
    rig.loop.steer("  \n")
    assert rig.loop.steer.waiting() == []


async def test_requests_stay_valid(
    rig: Rig, dialect: str, llm_server: Callable[..., Awaitable[ScriptedLLM]]
) -> None:
    server = await llm_server([asks("a", "b"), "An answer.", "Another."])
    rig.add_tool(echo_tool())
    steer_once(rig, "tool:post", "after the tools")
    answers = ["after the answer"]

    def during_the_answer(data: dict[str, Any]) -> None:
        if rig.of("provider:request")[-1]["iteration"] == 2 and answers:
            rig.loop.steer(answers.pop())

    rig.on("content_block:end", during_the_answer)
    async with provided(rig, dialect, server):
        assert await rig.run("go") == "Another."

    assert server.rejections == []
    assert rig.context.roles() == [
        "user", "assistant", "tool", "tool", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert "after the tools" in str(server.requests[1].body)
    assert "after the answer" in str(server.requests[2].body)


async def test_redaction_does_not_change_requests(rig: Rig) -> None:
    from amplifier_modules import hooks_redaction
    from tests.support import planted

    secret = planted.SECRETS["github-classic"]
    await rig.loop.mount(rig.coordinator)
    await hooks_redaction.mount(rig.coordinator, {})
    await hooks_redaction.on_session_ready(rig.coordinator)
    steering_tool(rig, f"use {secret}")
    rig.replies(calls(call()), "used it")

    assert await rig.run("go") == "used it"
    assert ("user", f"use {secret}") in said(rig)


def keeping_going(rig: Rig, times: int, *, stops: bool = False) -> list[Any]:
    """Let a hook make the turn go on so many times; returns the data of each of its calls."""
    seen: list[Any] = []

    async def handler(event: str, data: Any) -> HookResult:
        seen.append(data["is_continued"])
        if len(seen) > times:
            return HookResult()
        if stops:
            rig.coordinator.cancellation.request_graceful()
        await rig.context.add_message({"role": "user", "content": "not yet"})
        return HookResult(action="modify", data={**data, "goes_on": True})

    rig.coordinator.hooks.register("turn:ending", handler)
    return seen


async def test_a_hook_makes_the_turn_go_on(rig: Rig) -> None:
    seen = keeping_going(rig, 2)
    rig.replies("one", "two", "three")
    assert await rig.run("go") == "three"
    assert seen == [False, True, True]
    assert [role for role, _ in said(rig)] == ["user", *["assistant", "user"] * 2, "assistant"]


async def test_a_turn_that_was_stopped_keeps_its_answer_whatever_a_hook_wants(rig: Rig) -> None:
    keeping_going(rig, 1, stops=True)
    rig.replies("one", "two")
    assert await rig.run("go") == "one"


async def test_a_message_of_the_user_comes_before_the_hooks_at_the_end(rig: Rig) -> None:
    seen = keeping_going(rig, 0)
    steering_tool(rig, "more")
    rig.replies(calls(call(id="a")), "one")
    assert await rig.run("go") == "one"
    assert seen == [False]
