"""A server that fails at each event of its stream: no text twice, no success for a partial answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from amplifier_app.base.stdio import Output
from amplifier_app.render.events import EventStream
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.render.result import RunReport
from amplifier_app.render.text import TextRenderer
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.subscriptions import subscribe
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.llm_errors import LLMError
from amplifier_modules import provider_anthropic, provider_openai
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import ListContext
from tests.support.llm_server import Cut, ErrorEvent, Reply, ResetAfter, ScriptedLLM, Stall

ANSWER = "One two three four five six seven."
EVENTS = 9  # of the longer of the two dialects
FAULTS = [
    *(Cut(after=k) for k in range(EVENTS)),
    *(Cut(after=k, clean=True) for k in range(EVENTS)),
    *(ResetAfter(after=k) for k in range(EVENTS)),
    *(Stall(after=k) for k in range(EVENTS)),
    *(ErrorEvent(after=k) for k in range(EVENTS)),
]
DIALECTS: dict[str, tuple[Any, str, str]] = {
    "anthropic": (provider_anthropic, "", "claude-sonnet-4-5"),
    "openai": (provider_openai, "/v1", "gpt-4o"),
}


def from_events(lines: str) -> str:
    events = [json.loads(line) for line in lines.splitlines()]
    return "".join(event["delta"] for event in events if event["type"] == "text")


OUTPUTS: dict[str, tuple[Callable[[Output], Renderer], Callable[[str], str]]] = {
    "pipe": (lambda output: TextRenderer(output, quiet=True), str.rstrip),
    "plain": (lambda output: PlainRenderer(output, quiet=True), str.rstrip),
    "events": (lambda output: EventStream(output, RunReport(), quiet=True), from_events),
}


async def turn(dialect: str, output: str, server: ScriptedLLM) -> tuple[str, TurnResult, Any]:
    """The output of a turn, its result, and the conversation after it."""
    make, read = OUTPUTS[output]
    module, path, model = DIALECTS[dialect]
    coordinator, context = ModuleCoordinator(), ListContext()
    config = {"base_url": server.base_url + path, "api_key": "k", "model": model}
    close = await module.mount(coordinator, {**config, "max_retries": 1, "idle_timeout": 1})
    reading, writing = os.pipe()
    recorder, renderer = TurnRecorder(), make(Output(writing))
    subscribe(coordinator, renderer, recorder)
    recorder.begin()
    renderer.turn_started()
    try:
        parts = (context, coordinator.get("providers"), {}, coordinator.hooks)
        response = await StreamingOrchestrator().execute("go", *parts, coordinator=coordinator)
        result = recorder.result(response)
    except LLMError:
        result = recorder.result("", "error")
    finally:
        await close()
    renderer.turn_ended(result)
    renderer.close()
    os.close(writing)
    text = os.read(reading, 65536).decode()
    os.close(reading)
    return read(text), result, context


@pytest.mark.timeout(120)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_broken_stream_shows_the_answer_once_or_its_beginning_and_an_error(
    dialect: str, output: str
) -> None:
    limit = asyncio.Semaphore(16)
    ended: Counter[str] = Counter()

    async def one(fault: Any) -> None:
        replies = [Reply(ANSWER, chars_per_delta=12, fault=f) for f in (fault, None)]
        async with limit, ScriptedLLM(replies) as server:
            shown, result, context = await turn(dialect, output, server)
        ended[result.status] += 1
        if result.status == "success":
            assert shown == result.response == ANSWER, fault
            assert context.roles() == ["user", "assistant"], fault
        else:
            assert result.status == "error", fault
            assert ANSWER.startswith(shown.strip()), fault
            assert len(server.completions) == 1, (fault, "something had been handed out")
            assert result.response == "", fault
            assert context.roles() == ["user"], fault

    await asyncio.gather(*(one(fault) for fault in FAULTS))
    assert min(ended["error"], ended["success"]) > 3
