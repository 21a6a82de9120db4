"""A call that is stopped or cut off after the service has counted its input is billed, so it counts."""

import asyncio
import contextlib
from typing import Any

import pytest

from amplifier_core.llm_errors import LLMError
from amplifier_core.testing import wait_for
from amplifier_modules._shared.loop.budget import find_budget
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import Rig
from tests.modules._shared.loop.test_over_http import provided
from tests.support.llm_server import Cut, ErrorEvent, Reply, ScriptedLLM, Stall, Status, Usage

LONG = Reply("a long answer", chars_per_delta=2, usage=Usage(input_tokens=1000, output_tokens=7))
# message_start counts 1000 tokens of input and 1 of output; what has come since is estimated.
KNOWN = 1001


def begun(fault: Cut | Stall) -> Reply:
    return Reply(LONG.text, chars_per_delta=2, usage=LONG.usage, fault=fault)


@pytest.mark.parametrize("how", ["stop", "task", "cut"])
async def test_the_tokens_of_a_call_without_an_answer_count(how: str) -> None:
    rig = Rig(StreamingOrchestrator)
    rig.plan["session"]["budget"] = {"max_tokens": 1500}
    fault = Cut(after=6) if how == "cut" else Stall(after=6)
    async with (
        ScriptedLLM([begun(fault), LONG, "never asked for"]) as server,
        provided(rig, "anthropic", server, max_retries=0, list_prices=True),
    ):
        turn = asyncio.create_task(rig.run("go"))
        if how != "cut":
            assert await wait_for(lambda: bool(rig.of("content_block:delta")), timeout=10)
            if how == "task":
                turn.cancel()
            else:
                await rig.coordinator.request_cancel(immediate=True)
        with contextlib.suppress(LLMError, asyncio.CancelledError):
            await turn
        spent = find_budget(rig.coordinator).spent
        (failed,) = rig.of("provider:error")
        known = failed["usage"]["total_tokens"]
        assert KNOWN <= known <= KNOWN + 3
        assert (spent.steps, spent.tokens, spent.unmeasured) == (1, known, 0)
        assert spent.cost > 0
        assert rig.last("orchestrator:complete")["usage"]["input_tokens"] == 1000

        rig.coordinator.cancellation.reset()
        assert await rig.run("again") == LONG.text
        assert spent.tokens == known + 1007
        # The budget holds: both calls were counted.
        assert (await rig.run("once more")).startswith("Budget reached")
        assert len(server.requests) == 2


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("how", ["stop", "cut"])
async def test_a_call_without_reported_usage_counts_with_an_estimate(api: str, how: str) -> None:
    rig = Rig(StreamingOrchestrator)
    fault = Cut(after=8) if how == "cut" else Stall(after=8)
    prompt = "x" * 4000
    async with (
        ScriptedLLM([begun(fault), LONG]) as server,
        provided(rig, "openai", server, api=api, max_retries=0, list_prices=True, model="gpt-5.4"),
    ):
        turn = asyncio.create_task(rig.run(prompt))
        if how == "stop":
            assert await wait_for(lambda: bool(rig.of("content_block:delta")), timeout=10)
            await rig.coordinator.request_cancel(immediate=True)
        with contextlib.suppress(LLMError):
            await turn
        spent = find_budget(rig.coordinator).spent
        (failed,) = rig.of("provider:error")
        usage = failed["usage"]
        assert 1000 <= usage["input_tokens"] <= 1050
        assert 1 <= usage["output_tokens"] <= 4
        assert (usage["estimated_calls"], spent.unmeasured, spent.unpriced) == (1, 0, 0)
        assert spent.tokens == usage["total_tokens"]
        assert spent.cost > 0

        rig.coordinator.cancellation.reset()
        assert await rig.run("again") == LONG.text
        assert spent.tokens == usage["total_tokens"] + 1007


async def test_the_output_of_a_call_that_was_cut_off_late_is_estimated() -> None:
    rig = Rig(StreamingOrchestrator)
    reply = Reply("long " * 100, chars_per_delta=5, usage=LONG.usage, fault=Cut(after=60))
    async with (
        ScriptedLLM([reply]) as server,
        provided(rig, "anthropic", server, max_retries=0, list_prices=True),
    ):
        with pytest.raises(LLMError):
            await rig.run("go")
    usage = rig.last("provider:error")["usage"]
    assert (usage["input_tokens"], usage["estimated_calls"]) == (1000, 1)
    assert 10 < usage["output_tokens"] <= 125


async def test_attempts_before_an_answer_count_too() -> None:
    rig = Rig(StreamingOrchestrator)
    async with (
        ScriptedLLM([begun(Cut(after=1)), LONG]) as server,
        provided(rig, "anthropic", server, max_retries=1),
    ):
        assert await rig.run("go") == LONG.text
    spent = find_budget(rig.coordinator).spent
    assert (spent.steps, spent.tokens) == (1, KNOWN + 1007)


@pytest.mark.parametrize(
    ("dialect", "fault"),
    [("anthropic", Status(529)), ("openai", Reply("hi", fault=ErrorEvent(after=1)))],
)
async def test_a_call_that_was_refused_counts_nothing(dialect: str, fault: Any) -> None:
    rig = Rig(StreamingOrchestrator)
    async with ScriptedLLM([fault]) as server, provided(rig, dialect, server, max_retries=0):
        with pytest.raises(LLMError):
            await rig.run("go")
    spent = find_budget(rig.coordinator).spent
    assert (spent.steps, spent.tokens) == (0, 0)
    assert "usage" not in rig.last("provider:error")
