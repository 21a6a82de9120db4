"""Whatever a loop reports, and however a provider fails or starts again: each text is shown once, and none is lost."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
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
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.testing import MockContextManager
from amplifier_modules import provider_anthropic, provider_openai
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import ListContext
from tests.support.llm_server import Cut, ErrorEvent, Reply, ResetAfter, ScriptedLLM, Stall

RENDERERS: dict[str, Callable[[Output], Renderer]] = {
    "pipe": lambda output: TextRenderer(output, quiet=True),
    "stream": lambda output: TextRenderer(output, stream=True),
    "plain": lambda output: PlainRenderer(output, quiet=True),
    "events": lambda output: EventStream(output, RunReport(), quiet=True),
}
OUTPUTS = ("pipe", "plain", "events")


class Turn:
    """A turn with one of the renderers on a pipe."""

    def __init__(self, output: str) -> None:
        self._reading, self._writing = os.pipe()
        self.coordinator = ModuleCoordinator()
        self._recorder = TurnRecorder()
        self._renderer = RENDERERS[output](Output(self._writing))
        subscribe(self.coordinator, self._renderer, self._recorder)
        self._recorder.begin()
        self._renderer.turn_started()
        self._is_stream = output == "events"

    async def emit(self, event: str, **data: Any) -> None:
        await self.coordinator.hooks.emit(event, data)

    async def end_block(self, text: str, index: int = 0) -> None:
        block = {"type": "text", "text": text}
        await self.emit("content_block:end", block_type="text", block_index=index, block=block)

    async def run(self, providers: dict[str, Any], context: Any = None) -> TurnResult:
        """Let the streaming loop answer with these providers."""
        parts = (context or ListContext(), providers, {}, self.coordinator.hooks)
        loop = StreamingOrchestrator()
        try:
            response = await loop.execute("go", *parts, coordinator=self.coordinator)
        except LLMError:
            return self.end("", "error")
        return self.end(response)

    def end(self, response: str, *status: Any) -> TurnResult:
        result = self._recorder.result(response, *status)
        self._renderer.turn_ended(result)
        self._renderer.close()
        os.close(self._writing)
        with os.fdopen(self._reading) as written:
            self.written = written.read()
        return result

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.splitlines()]

    @property
    def texts(self) -> list[str]:
        return [event["delta"] for event in self.events if event["type"] == "text"]

    @property
    def text(self) -> str:
        return "".join(self.texts) if self._is_stream else self.written.rstrip()


# A server that fails at each event of its stream

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


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("dialect", "output"), [("anthropic", "pipe"), ("openai", "plain"), ("openai", "events")]
)
async def test_a_broken_stream_shows_the_answer_once_or_its_beginning_and_an_error(
    dialect: str, output: str
) -> None:
    module, path, model = DIALECTS[dialect]
    limit = asyncio.Semaphore(16)
    ended: Counter[str] = Counter()

    async def one(fault: Any) -> None:
        replies = [Reply(ANSWER, chars_per_delta=12, fault=f) for f in (fault, None)]
        async with limit, ScriptedLLM(replies) as server:
            turn, context = Turn(output), ListContext()
            config = {"base_url": server.base_url + path, "api_key": "k", "model": model}
            config |= {"max_retries": 1, "idle_timeout": 1}
            close = await module.mount(turn.coordinator, config)
            result = await turn.run(turn.coordinator.get("providers"), context)
            await close()
        ended[result.status] += 1
        if result.status == "success":
            assert turn.text == result.response == ANSWER, fault
            assert context.roles() == ["user", "assistant"], fault
        else:
            assert result.status == "error", fault
            assert ANSWER.startswith(turn.text.strip()), fault
            assert len(server.completions) == 1, (fault, "something had been handed out")
            assert result.response == "", fault
            assert context.roles() == ["user"], fault

    await asyncio.gather(*(one(fault) for fault in FAULTS))
    assert min(ended["error"], ended["success"]) > 3


# A provider that restarts its stream, as some published ones do


class Impatient:
    name = "impatient"

    def __init__(self, coordinator: ModuleCoordinator, *tries: list[str]) -> None:
        self._hooks = coordinator.hooks
        self._tries = tries

    async def complete(self, request: Any) -> Any:
        raise AssertionError

    async def stream_complete(self, request: Any) -> AsyncIterator[Any]:
        text = ""
        about = {"index": 0, "block_type": "text"}
        for number, deltas in enumerate(self._tries):
            if number:
                await self._hooks.emit("provider:retry", {"provider": self.name, "attempt": number})
            yield {"type": "content_block_start", **about}
            for delta in deltas:
                yield {"type": "content_block_delta", **about, "delta": delta}
            text = "".join(deltas)
        yield {"type": "content_block_end", **about, "block": {"type": "text", "text": text}}
        yield ChatResponse(content=[TextBlock(text=text)])


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([["One ", "two ", "three."]], "One two three."),
        ([["One ", "two "], ["One ", "two ", "three."]], "One two three."),
        ([["One two thr"], ["On", "e", " two", " three."]], "One two three."),
        ([["One "], ["One ", "tw"], ["One two three."]], "One two three."),
        ([["One ", "two "], ["One and a half."]], "One two \nOne and a half."),
        ([[], ["One two three."]], "One two three."),
    ],
)
async def test_text_is_shown_once(output: str, tries: list[list[str]], expected: str) -> None:
    turn = Turn(output)
    await turn.run({"impatient": Impatient(turn.coordinator, *tries)})
    text = turn.text
    if output == "plain":
        # The notice about the retry is on a line of its own.
        text, expected = text.replace("\n", ""), expected.replace("\n", "")
    assert text == expected


async def test_a_shorter_second_answer_keeps_the_text_shown() -> None:
    """Text written to a pipe cannot be undone."""
    turn = Turn("pipe")
    await turn.run({"impatient": Impatient(turn.coordinator, ["One two three."], ["One two"])})
    assert turn.text == "One two three."


def test_enter_and_notices_in_plain_output_do_not_break_a_word() -> None:
    reading, writing = os.pipe()
    renderer = PlainRenderer(Output(writing))
    on_delta = renderer.handlers()["content_block:delta"]
    block = {"block_type": "text", "block_index": 0}
    for delta, written in (("The wo", "The "), ("rd is", "word "), (" long", "is ")):
        on_delta("content_block:delta", {**block, "delta": delta})
        assert os.read(reading, 99).decode() == written
    renderer.notice("queued", "info", "")
    assert os.read(reading, 99).decode() == "\n"
    renderer.handlers()["content_block:end"]("content_block:end", block)
    assert os.read(reading, 99).decode() == "long\n"
    on_delta("content_block:delta", {**block, "delta": "x" * 81})
    assert os.read(reading, 99).decode() == "x" * 81
    os.close(reading)
    os.close(writing)


# Loops that send no ids of calls and no blocks of the answer, as some published ones do


async def test_events_of_parallel_calls_have_the_ids_and_durations_of_the_result() -> None:
    turn = Turn("events")
    second_ended = asyncio.Event()

    async def call(command: str) -> None:
        await turn.emit("tool:pre", tool_name="bash", tool_input={"command": command})
        if command == "slow":
            await second_ended.wait()
        result = {"success": True, "output": command}
        await turn.emit("tool:post", tool_name="bash", result=result)
        second_ended.set()

    await asyncio.gather(call("slow"), call("fast"))
    calls = {tool.id: tool for tool in turn.end("done").tools}
    started = {e["id"]: e["input"]["command"] for e in turn.events if e["type"] == "tool_start"}
    ended = [e for e in turn.events if e["type"] == "tool_end"]
    assert started == {"call-1": "slow", "call-2": "fast"}
    assert [(e["id"], e["output"]) for e in ended] == [("call-2", "fast"), ("call-1", "slow")]
    assert all(e["duration_ms"] == calls[e["id"]].duration_ms for e in ended)


async def test_calls_that_end_in_another_order_in_one_task_keep_their_tool() -> None:
    turn = Turn("events")
    for name in ("read", "write"):
        await turn.emit("tool:pre", tool_name=name, tool_input={})
    for name in ("read", "write"):
        await turn.emit("tool:post", tool_name=name, result={"success": name == "write"})
    outcomes = [(tool.name, tool.outcome) for tool in turn.end("done").tools]
    assert outcomes == [("read", "error"), ("write", "ok")]
    ended = [(e["id"], e["name"]) for e in turn.events if e["type"] == "tool_end"]
    assert ended == [("call-1", "read"), ("call-2", "write")]


async def test_an_error_that_a_tool_emits_itself_is_no_second_call() -> None:
    turn = Turn("events")
    for ids in ({"tool_call_id": "1"}, {}):
        await turn.emit("tool:pre", tool_name="task", tool_input={}, **ids)
        await turn.emit("tool:error", tool="task", agent="helper", error="it failed")
        result = {"success": False, "error": {"message": "Delegation failed"}}
        await turn.emit("tool:post", tool_name="task", result=result, **ids)
    calls = [(tool.name, tool.outcome) for tool in turn.end("done").tools]
    assert calls == [("task", "error")] * 2
    ends = [event for event in turn.events if event["type"] == "tool_end"]
    assert [end["name"] for end in ends] == ["task", "task"]


@pytest.mark.parametrize("has_blocks", [False, True])
async def test_an_answer_is_streamed_once_with_and_without_blocks(has_blocks: bool) -> None:
    turn = Turn("events")
    await turn.emit("provider:request", provider="mock")
    if has_blocks:
        await turn.end_block("the answer")
    turn.end("the answer")
    assert turn.texts == ["the answer"]


@pytest.mark.parametrize("reports", [False, True])
async def test_text_of_each_step_is_streamed_once_whether_or_not_the_loop_reports_blocks(
    reports: bool,
) -> None:
    turn, context = Turn("events"), MockContextManager()
    await turn.coordinator.mount("context", context)
    await turn.emit("prompt:submit", prompt="go")
    for step in ("first", "second"):
        text = {"type": "text", "text": f"the {step} step"}
        calls = [{"type": "tool_call", "id": name, "name": name, "input": {}} for name in "ab"]
        if reports:
            await turn.emit("provider:request", provider="mock")
            await turn.end_block(text["text"])
        await context.add_message({"role": "assistant", "content": [text, *calls]})
        # One call after the other, with their results added at the end.
        for name in "ab":
            await turn.emit("tool:pre", tool_name=name, tool_input={})
            await turn.emit("tool:post", tool_name=name, result={"success": True})
        for name in "ab":
            await context.add_message({"role": "tool", "tool_call_id": name, "content": "ok"})
    if reports:
        await turn.end_block("the end")
    end = [{"type": "text", "text": "the end"}]
    await context.add_message({"role": "assistant", "content": end})
    await turn.emit("orchestrator:complete", status="success")
    turn.end("the end")
    step = ["text", "tool_start", "tool_end", "tool_start", "tool_end"]
    kinds = [event["type"] for event in turn.events if event["type"] != "request"]
    assert kinds == [*step, *step, "text"]
    assert turn.texts == ["the first step", "the second step", "the end"]


async def test_stream_writes_the_text_of_blocks_without_deltas() -> None:
    turn = Turn("stream")
    for index, (text, deltas) in enumerate([("Looking.", False), ("Thus", True), ("done.", False)]):
        if index < 2:
            await turn.emit("provider:request", provider="mock")
        if deltas:
            about = {"block_type": "text", "block_index": index}
            await turn.emit("content_block:delta", **about, delta=text)
        await turn.end_block(text, index)
    turn.end("Thus done.")
    assert turn.written == "Looking.\nThus\ndone.\n"


async def test_stream_writes_the_texts_of_a_loop_that_reports_no_requests() -> None:
    turn = Turn("stream")
    for text in ("Looking.", "done."):
        await turn.end_block(text)
    turn.end("done.")
    assert turn.written == "Looking.\ndone.\n"
