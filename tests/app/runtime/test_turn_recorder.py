"""The record of a turn, from events of bundled and third-party orchestrators."""

import asyncio
from decimal import Decimal
from typing import Any

from amplifier_app.runtime.turns.turn import TurnResult, Usage
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_core.hooks import HookRegistry
from amplifier_core.message_models import Usage as KernelUsage
from amplifier_core.models import HookResult, ToolResult


class Recorded:
    def __init__(self) -> None:
        self.recorder = TurnRecorder()
        self.hooks = HookRegistry()
        for event, handler in self.recorder.handlers().items():
            self.hooks.register(event, handler, -1000)
        for event in ("prompt:submit", "provider:request"):
            asked, allowed = self.recorder.denial_handlers()
            self.hooks.register(event, asked, -1000)
            self.hooks.register(event, allowed, 1000)

    async def emit(self, event: str, **data: Any) -> HookResult:
        return await self.hooks.emit(event, data)

    def result(self, *args: Any) -> TurnResult:
        return self.recorder.result("text", *args)


def usage(cost: str | None = None, **more: int) -> KernelUsage:
    return KernelUsage(
        input_tokens=10,
        output_tokens=5,
        total_tokens=15,
        cost_usd=None if cost is None else Decimal(cost),
        **more,
    )


async def test_usage_of_model_calls_is_added_up() -> None:
    it = Recorded()
    for cost in ("0.10", "0.05"):
        await it.emit("provider:request")
        await it.emit("llm:response", usage=usage(cost))
        await it.emit("provider:response", usage=usage(cost, cache_read_tokens=4))
    result = it.result()
    assert result.usage == {
        "input_tokens": 20,
        "output_tokens": 10,
        "total_tokens": 30,
        "cache_read_tokens": 8,
    }
    assert (result.steps, result.cost) == (2, Decimal("0.15"))


async def test_the_context_is_as_full_as_the_refusal_of_a_long_request_says() -> None:
    it = Recorded()
    await it.emit("provider:response", usage=usage())
    assert (it.recorder.context_tokens, it.recorder.context_limit) == (15, None)

    async def refuse(message: str, kind: str = "ContextLengthError") -> None:
        await it.emit("provider:error", error={"type": kind, "message": message})

    await refuse("rate limit of 2000 tokens per minute: 5000", "RateLimitError")
    assert it.recorder.context_tokens == 15
    await refuse("400: prompt is too long: 213,000 tokens > 200000 maximum")
    assert (it.recorder.context_tokens, it.recorder.context_limit) == (213_000, 200_000)
    await refuse("400: the request is too long")
    assert (it.recorder.context_tokens, it.recorder.context_limit) == (None, None)


async def test_usage_of_the_provider_counts_if_the_loop_reports_none() -> None:
    it = Recorded()
    await it.emit("provider:response", usage={})
    await it.emit("llm:response", usage={"input_tokens": 3, "output_tokens": 4})
    assert it.result().usage == {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    assert it.recorder.context_tokens == 7


async def test_a_summary_of_the_context_is_no_report_of_the_loop() -> None:
    it = Recorded()
    for purpose in (None, "context:summary"):
        await it.emit("llm:response", usage=usage("0.10"))
        reported = {} if purpose is None else {"usage": usage("0.10"), "purpose": purpose}
        await it.emit("provider:response", **reported)
    assert (it.result().cost, it.result().usage["total_tokens"]) == (Decimal("0.20"), 30)


async def test_a_call_without_reported_usage_makes_the_cost_unknown() -> None:
    it = Recorded()
    for reported in (usage("0.10"), {}):
        await it.emit("provider:response", usage=reported)
    assert (it.result().cost, it.result().usage["total_tokens"]) == (None, 15)
    above = Recorded()
    await above.emit("provider:response", usage=usage("0.10"))
    silent = Recorded()
    await silent.emit("provider:response", usage={})
    total = above.recorder.usage
    total.merge(silent.recorder.usage)
    assert (total.calls, total.cost_usd) == (2, None)


async def test_one_unknown_price_makes_the_cost_unknown() -> None:
    it = Recorded()
    await it.emit("provider:response", usage=usage("0.10"))
    await it.emit("provider:response", usage=usage(None))
    await it.emit("provider:response", usage=usage("0.10"))
    assert it.result().cost is None


async def test_a_call_that_waits_for_approval_does_not_run() -> None:
    it = Recorded()
    for call in ("1", "2"):
        await it.emit("tool:pre", tool_name="bash", tool_call_id=call, tool_input={"n": call})

    def running() -> list[Any]:
        return [tool.input["n"] for tool in it.recorder.running]

    await it.emit("approval:required", tool_name="bash", tool_call_id="2")
    assert running() == ["1"]
    await asyncio.sleep(0.01)
    waited = it.recorder.running[0].seconds
    await it.emit("approval:granted", tool_name="bash", tool_call_id="2", decided_by="answer")
    assert it.recorder.running[0].seconds < waited, "the calls of an answer begin together"
    assert running() == ["1", "2"]


def test_usage_of_turns_adds_up() -> None:
    total, turn = Usage(), Usage()
    turn.add(usage("0.10"))
    total.merge(turn)
    total.merge(turn)
    total.merge(Usage())
    assert (total.calls, total.cost_usd) == (2, Decimal("0.20"))
    assert total.tokens["total_tokens"] == 30


async def test_tool_calls_are_distinguished_by_outcome() -> None:
    it = Recorded()
    for call_id in ("ok", "failed", "raised", "denied", "cut"):
        await it.emit("tool:pre", tool_name="bash", tool_call_id=call_id)
    await it.emit("tool:post", tool_call_id="ok", tool_result=ToolResult(), duration_ms=20)
    await it.emit("tool:post", tool_call_id="failed", result=ToolResult(success=False))
    error = {"type": "ValueError", "message": "boom"}
    await it.emit("tool:error", tool_call_id="raised", error=error)
    await it.emit("tool:error", tool_call_id="denied", error={"type": "Denied", "message": "no"})
    await it.emit("tool:error", tool_call_id="cut", error={"type": "Interrupted"})
    await it.emit("tool:error", tool_call_id="odd", tool_name="odd", error={"type": "UnknownTool"})
    result = it.result()
    assert {tool.id: tool.outcome for tool in result.tools} == {
        "ok": "ok",
        "failed": "error",
        "raised": "error",
        "denied": "denied",
        "cut": "interrupted",
        "odd": "error",
    }
    assert result.tools[0].duration_ms == 20
    assert [(tool.id, tool.reason) for tool in result.denied] == [("denied", "no")]


async def test_a_call_that_a_third_party_loop_never_ended_was_denied() -> None:
    it = Recorded()
    await it.emit("tool:pre", tool_name="bash", input={"command": "x"})
    await it.emit("provider:request")
    await it.emit("tool:pre", tool_name="bash", input={"command": "y"})
    await it.emit("tool:post", tool_name="bash", result=ToolResult())
    await it.emit("tool:pre", tool_name="read", input={})
    assert [tool.outcome for tool in it.result("cancelled").tools] == [
        "denied",
        "ok",
        "interrupted",
    ]


async def test_a_call_of_a_tool_that_a_third_party_loop_does_not_know_was_not_denied() -> None:
    it = Recorded()
    await it.emit("tool:pre", tool_name="nope", tool_input={})
    await it.emit("error:tool", error_type="tool_not_found", error_message="Tool nope not found")
    await it.emit("tool:pre", tool_name="bash", tool_input={})
    await it.emit("error:tool", error_type="execution_failed", error_message="no")
    await it.emit("tool:post", tool_name="bash", result=ToolResult(success=False))
    await it.emit("provider:request")
    result = it.result()
    assert [(tool.name, tool.outcome, tool.reason) for tool in result.tools] == [
        ("nope", "error", "Tool nope not found"),
        ("bash", "error", None),
    ]
    assert result.denied == ()


async def test_why_a_third_party_loop_has_no_answer_is_seen_from_its_events() -> None:
    it = Recorded()

    async def read_reason(*events: str, response: str = "", **request: bool) -> str | None:
        it.recorder.begin()
        for event in events:
            await it.emit(event, tool_name="read", **request)
        await it.emit("orchestrator:complete", status="incomplete", turn_count=1)
        assert it.recorder.result(response).status == "incomplete"
        return it.recorder.result(response).reason

    step = ("provider:request", "tool:pre", "tool:post")
    assert await read_reason("provider:request") == "empty"
    assert await read_reason(*step, "provider:request") == "empty"
    assert await read_reason(*step) is None
    assert await read_reason(*step, "provider:request", max_reached=True) == "max_iterations"
    assert await read_reason(*step, "provider:request", max_reached=True, response="so far") is None
    # Some return the answer at their limit, a call without text, as a success.
    await it.emit("orchestrator:complete", status="success", turn_count=2)
    result = it.recorder.result("")
    assert (result.status, result.reason) == ("incomplete", "max_iterations")


async def test_a_turn_that_a_hook_denied_is_denied_whatever_a_third_party_loop_reports() -> None:
    it = Recorded()
    answer = HookResult(action="deny", reason="no")
    it.hooks.register("provider:request", lambda event, data: answer)

    async def ended(*events: str, **request: bool) -> tuple[str, str | None]:
        it.recorder.begin()
        for event in ("prompt:submit", *events):
            await it.emit(event, tool_name="read", **request)
        await it.emit("orchestrator:complete", status="success", turn_count=1)
        result = it.result()
        return result.status, result.reason

    assert await ended("provider:request") == ("incomplete", "denied")
    assert await ended("provider:request", "provider:response") == ("success", None)
    assert await ended("provider:request", max_reached=True) == ("success", None)
    answer = HookResult(action="ask_user")
    assert await ended("provider:request") == ("success", None)
    it.hooks.register("prompt:submit", lambda event, data: HookResult(action="deny"))
    assert await ended() == ("incomplete", "denied")


def test_a_replayed_turn_without_answers_of_hooks_is_not_denied() -> None:
    recorder = TurnRecorder()
    for event in ("prompt:submit", "provider:request"):
        for name, handler in recorder.handlers().items():
            if name == event:
                handler(event, {})
    assert recorder.result("done").status == "success"


async def test_a_denial_of_the_sandbox_belongs_to_its_call_in_every_loop() -> None:
    it = Recorded()

    async def call(reason: str, **ids: str) -> None:
        await it.emit("tool:pre", tool_name="bash", tool_input={}, **ids)
        await asyncio.sleep(0)
        await it.emit("sandbox:denied", tool="bash", reason=reason, **ids)
        await asyncio.sleep(0)
        await it.emit("tool:post", tool_name="bash", result=ToolResult(), **ids)

    await asyncio.gather(call("a"), call("b"), call("c", span_id="s"))
    assert [one.reason for one in it.result().denied] == ["a", "b", "c"]
    assert all(one.by_sandbox for one in it.result().denied)


async def test_a_decision_without_its_source_or_reason() -> None:
    it = Recorded()
    about = {"tool_name": "bash", "tool_call_id": "1"}
    await it.emit("tool:pre", tool_input={}, **about)
    await it.emit("approval:granted", reason="Auto-approved by rule", **about)
    assert it.recorder.last_tool is not None
    assert it.recorder.last_tool.decision == "Auto-approved by rule"
    await it.emit("approval:denied", **about)
    assert (it.recorder.last_tool.decision, it.recorder.last_tool.reason) == (None, "denied")


async def test_parallel_calls_without_ids_are_distinguished_and_keep_the_reason_of_a_denial() -> (
    None
):
    it = Recorded()

    async def call(command: str, denied: bool) -> None:
        await it.emit("tool:pre", tool_name="bash", tool_input={"command": command})
        await asyncio.sleep(0)
        if denied:
            await it.emit(
                "approval:denied",
                tool_name="bash",
                decided_by="default",
                reason=None if command == "x" else "it must not",
                by_default=command == "x",
            )
            return
        await it.emit("tool:post", tool_name="bash", result=ToolResult())

    await asyncio.gather(call("x", True), call("y", False), call("z", True))
    result = it.result()
    assert [tool.outcome for tool in result.tools] == ["denied", "ok", "denied"]
    assert [(one.reason, one.by_default) for one in result.denied] == [
        ("denied: default", True),
        ("denied: it must not", False),
    ]


async def test_the_orchestrator_reports_how_the_turn_ended() -> None:
    it = Recorded()
    await it.emit(
        "orchestrator:complete", status="incomplete", reason="max_iterations", turn_count=7
    )
    result = it.result()
    assert (result.status, result.reason, result.steps) == ("incomplete", "max_iterations", 7)
    assert not result.has_answer
    it.recorder.begin()
    assert it.result().status == "success"
    assert it.result().has_answer
