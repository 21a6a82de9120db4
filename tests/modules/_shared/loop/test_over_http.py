"""The loops with the HTTP providers against a strict server: valid requests, whatever happened."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from amplifier_core.llm_errors import LLMError
from amplifier_core.testing import wait_for
from amplifier_modules import provider_anthropic, provider_openai
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import FunctionTool, Rig, echo_tool
from tests.support.llm_server import (
    Cut,
    ErrorEvent,
    Malformed,
    Reply,
    Reset,
    ResetAfter,
    ScriptedLLM,
    Status,
    ToolCall,
)
from tests.support.thorough import Scale

PROVIDERS = {
    "anthropic": (provider_anthropic, "", "claude-sonnet-5-5"),
    "openai": (provider_openai, "/v1", "gpt-4o"),
}


@asynccontextmanager
async def provided(rig: Rig, dialect: str, server: ScriptedLLM, **more: Any) -> AsyncIterator[Rig]:
    """The rig with a provider of this dialect that asks the server."""
    module, path, model = PROVIDERS[dialect]
    config = {"base_url": server.base_url + path, "api_key": "test-key-1", "model": model, **more}
    cleanup = await module.mount(rig.coordinator, config)
    rig.providers = rig.coordinator.get("providers")
    try:
        yield rig
    finally:
        await cleanup()


@pytest.fixture(params=list(PROVIDERS))
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


def asks(*texts: str, **more: Any) -> Reply:
    return Reply(
        tool_calls=[ToolCall("echo", {"text": text}, id=f"call_{text}") for text in texts], **more
    )


async def test_errors_answered_to_the_model_are_valid_requests(
    rig: Rig, dialect: str, llm_server: Callable[..., Awaitable[ScriptedLLM]]
) -> None:
    broken = ToolCall("echo", id="call_broken", raw_input='{"text": "a')
    unknown = ToolCall("absent", {}, id="call_unknown")
    wrong = ToolCall("echo", {"text": 5}, id="call_wrong")
    server = await llm_server([Reply(tool_calls=[broken, unknown, wrong]), "I see."])
    tool = rig.add_tool(echo_tool())
    async with provided(rig, dialect, server):
        assert await rig.run("go") == "I see."

    assert tool.inputs == []
    assert server.rejections == []
    results = rig.context.results()
    assert "not valid JSON" in results["call_broken"]
    assert "unknown tool 'absent'" in results["call_unknown"]
    assert "not of type 'string'" in results["call_wrong"]


@pytest.mark.parametrize("how", ["graceful", "immediate", "task"])
async def test_the_request_after_an_interrupt_is_valid(
    rig: Rig, dialect: str, how: str, llm_server: Callable[..., Awaitable[ScriptedLLM]]
) -> None:
    names = [f"slow{i}" for i in range(8)]
    started: list[str] = []
    let_go = asyncio.Event()

    def slow(name: str) -> FunctionTool:
        async def run(_: dict[str, Any]) -> str:
            started.append(name)
            await let_go.wait()
            return name

        return FunctionTool(name, run)

    for name in names:
        rig.add_tool(slow(name))
    tool_calls = [ToolCall(name, {}, id=f"call_{name}") for name in names]
    server = await llm_server([Reply(thinking="hm", tool_calls=tool_calls), "Back again."])
    async with provided(rig, dialect, server):
        turn = asyncio.create_task(rig.run("go"))
        assert await wait_for(lambda: len(started) == 8, timeout=10)
        if how == "task":
            turn.cancel()
        else:
            await rig.coordinator.request_cancel(immediate=how == "immediate")
            let_go.set() if how == "graceful" else None
        await asyncio.wait([turn])
        assert turn.cancelled() == (how == "task")

        rig.coordinator.cancellation.reset()
        assert await rig.run("go on") == "Back again."

    assert server.rejections == []
    assert list(rig.context.results()) == [call.id for call in tool_calls]


FAULTS = [
    *(Cut(after=k) for k in range(14)),
    *(Cut(after=k, clean=True) for k in range(14)),
    *(ResetAfter(after=k) for k in range(14)),
    *(ErrorEvent(after=k) for k in range(10)),
    *(Malformed(at=k) for k in range(10)),
]
OUTRIGHT = [Status(429), Status(500), Status(529), Status(503), Reset()]


@pytest.mark.timeout(300)
async def test_tools_run_at_most_once_per_call_across_faults(dialect: str, scale: Scale) -> None:
    """An answer with calls fails at every event; the same calls come again with the next answer."""
    counts: Counter[str] = Counter()
    rejected: list[Any] = []
    limit = asyncio.Semaphore(16)

    async def one(number: int, fault: Any) -> None:
        rig = Rig(StreamingOrchestrator)
        runs: Counter[str] = Counter()

        async def work(input: dict[str, Any]) -> str:
            runs[input["id"]] += 1
            return "worked"

        rig.add_tool(FunctionTool("work", work))
        tool_calls = [ToolCall("work", {"id": i}, id=f"call_{i}") for i in ("a", "b")]
        whole = Reply(text="working", tool_calls=tool_calls)
        first = fault if fault in OUTRIGHT else Reply("working", tool_calls, fault=fault)
        async with (
            limit,
            ScriptedLLM([first, whole, "done", "done again"]) as server,
            provided(rig, dialect, server, max_retries=1),
        ):
            for prompt in ("go", "go on"):
                try:
                    assert await rig.run(prompt) in ("done", "done again")
                except LLMError:
                    counts["errors"] += 1
            rejected.extend(server.rejections)
        assert runs, (number, fault)
        assert max(runs.values()) == 1, (number, fault, runs)
        assert len(rig.of("orchestrator:complete")) == 2
        counts["runs"] += 1

    faults = [*scale(FAULTS[::3], FAULTS), *OUTRIGHT]
    await asyncio.gather(*(one(number, fault) for number, fault in enumerate(faults)))

    assert counts["runs"] == len(faults)
    assert counts["errors"] > 0
    assert rejected == []
