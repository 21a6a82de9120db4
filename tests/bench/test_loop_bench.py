"""What the loops cost: each delta of a stream, and each turn of provider call and tool call.

Each is shown with its floor, the same work without a loop. Run with ``--benchmark-enable``; the
targets are 8 µs for a delta without listeners and well under 10 ms for a tool turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from amplifier_core.hooks import HookRegistry
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall, ToolCallBlock, Usage
from amplifier_core.models import ToolResult
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.turn import LoopOrchestrator
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import ListContext

DELTAS = 5_000
TOOL_TURNS = 100


class Talker:
    """Streams many small deltas."""

    async def stream_complete(self, request: Any) -> AsyncIterator[Any]:
        for _ in range(DELTAS):
            yield {
                "type": "content_block_delta",
                "index": 0,
                "block_type": "text",
                "delta": "word ",
            }
        yield ChatResponse(content=[TextBlock(text="word " * DELTAS)])

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return []


class Worker:
    """Asks for a tool so many times, then answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: Any) -> ChatResponse:
        usage = Usage(input_tokens=100, output_tokens=10, total_tokens=110)
        if self.asked == TOOL_TURNS:
            return ChatResponse(content=[TextBlock(text="done")], usage=usage)
        self.asked += 1
        text = f"{self.asked:03}" + "x" * 197
        block = ToolCallBlock(id=f"c{self.asked}", name="work", input={"text": text})
        call = ToolCall(id=block.id, name=block.name, arguments=block.input)
        return ChatResponse(content=[block], tool_calls=[call], usage=usage)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


class Work:
    name = "work"
    description = "does nothing much"
    input_schema = {  # noqa: RUF012
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        return ToolResult(output=input["text"])


Run = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs coroutine functions on one event loop, whose making is not measured."""
    with asyncio.Runner() as runner:
        yield lambda function: runner.run(function())


def turn(kind: type[LoopOrchestrator], provider: Any, hooks: HookRegistry) -> Any:
    loop = kind(LoopConfig(max_iterations=0))
    return loop.execute("go", ListContext(), {"p": provider}, {"work": Work()}, hooks)


async def _ignore(event: str, data: dict[str, Any]) -> None:
    """A listener that looks at nothing."""


@pytest.mark.parametrize("listeners", [0, 1])
def test_deltas(benchmark: Any, run: Run, listeners: int) -> None:
    hooks = HookRegistry()
    for _ in range(listeners):
        hooks.register("content_block:delta", _ignore)
    text = benchmark(run, lambda: turn(StreamingOrchestrator, Talker(), hooks))
    assert len(text) == len("word ") * DELTAS
    benchmark.extra_info["deltas"] = DELTAS


def test_deltas_floor(benchmark: Any, run: Run) -> None:
    """Reading the stream and awaiting twice for each chunk."""

    async def nothing(event: str, data: dict[str, Any]) -> None:
        return None

    async def read() -> int:
        count = 0
        async for chunk in Talker().stream_complete(None):
            await nothing("provider:stream", {"chunk": chunk})
            await nothing("content_block:delta", {"chunk": chunk})
            count += 1
        return count

    assert benchmark(run, read) == DELTAS + 1


@pytest.mark.parametrize("kind", [BasicOrchestrator, StreamingOrchestrator])
def test_tool_turns(benchmark: Any, run: Run, kind: type[LoopOrchestrator]) -> None:
    assert benchmark(run, lambda: turn(kind, Worker(), HookRegistry())) == "done"
    benchmark.extra_info["turns"] = TOOL_TURNS


def test_tool_turns_floor(benchmark: Any, run: Run) -> None:
    """The calls of provider and tool alone."""

    async def work() -> int:
        provider, tool, messages = Worker(), Work(), list[Any]()
        while calls := provider.parse_tool_calls(await provider.complete(None)):
            messages.append(await tool.execute(calls[0].arguments))
        return len(messages)

    assert benchmark(run, work) == TOOL_TURNS
