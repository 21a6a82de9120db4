"""Loops that send no ids of calls and no blocks of the answer, as some published ones do."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from amplifier_app.base.stdio import Output
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport
from amplifier_app.render.text import TextRenderer
from amplifier_app.runtime.observers.subscriptions import subscribe
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.testing import MockContextManager


class Streamed:
    """A turn with `--output stream-json`."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self.coordinator = ModuleCoordinator()
        self._recorder = TurnRecorder()
        self._stream = EventStream(Output(self._writing), RunReport())
        subscribe(self.coordinator, self._stream, self._recorder)
        self._stream.turn_started()

    async def emit(self, event: str, **data: Any) -> None:
        await self.coordinator.hooks.emit(event, data)

    def end(self, response: str) -> TurnResult:
        result = self._recorder.result(response)
        self._stream.turn_ended(result)
        os.close(self._writing)
        return result

    @property
    def events(self) -> list[dict[str, Any]]:
        with os.fdopen(self._reading) as written:
            return [json.loads(line) for line in written]


async def test_events_of_parallel_calls_have_the_ids_and_durations_of_the_result() -> None:
    it = Streamed()
    second_ended = asyncio.Event()

    async def call(command: str) -> None:
        await it.emit("tool:pre", tool_name="bash", tool_input={"command": command})
        if command == "slow":
            await second_ended.wait()
        result = {"success": True, "output": command}
        await it.emit("tool:post", tool_name="bash", result=result)
        second_ended.set()

    await asyncio.gather(call("slow"), call("fast"))
    calls = {tool.id: tool for tool in it.end("done").tools}
    events = it.events
    started = {e["id"]: e["input"]["command"] for e in events if e["type"] == "tool_start"}
    ended = [e for e in events if e["type"] == "tool_end"]
    assert started == {"call-1": "slow", "call-2": "fast"}
    assert [(e["id"], e["output"]) for e in ended] == [("call-2", "fast"), ("call-1", "slow")]
    assert all(e["duration_ms"] == calls[e["id"]].duration_ms for e in ended)


async def test_calls_that_end_in_another_order_in_one_task_keep_their_tool() -> None:
    it = Streamed()
    for name in ("read", "write"):
        await it.emit("tool:pre", tool_name=name, tool_input={})
    for name in ("read", "write"):
        await it.emit("tool:post", tool_name=name, result={"success": name == "write"})
    outcomes = [(tool.name, tool.outcome) for tool in it.end("done").tools]
    assert outcomes == [("read", "error"), ("write", "ok")]
    ended = [(e["id"], e["name"]) for e in it.events if e["type"] == "tool_end"]
    assert ended == [("call-1", "read"), ("call-2", "write")]


async def test_an_error_that_a_tool_emits_itself_is_no_second_call() -> None:
    it = Streamed()
    for ids in ({"tool_call_id": "1"}, {}):
        await it.emit("tool:pre", tool_name="task", tool_input={}, **ids)
        await it.emit("tool:error", tool="task", agent="helper", error="it failed")
        result = {"success": False, "error": {"message": "Delegation failed"}}
        await it.emit("tool:post", tool_name="task", result=result, **ids)
    calls = [(tool.name, tool.outcome) for tool in it.end("done").tools]
    assert calls == [("task", "error")] * 2
    ends = [event for event in it.events if event["type"] == "tool_end"]
    assert [end["name"] for end in ends] == ["task", "task"]


async def test_an_answer_without_blocks_is_streamed_at_the_end_of_its_turn() -> None:
    it = Streamed()
    await it.emit("provider:request", provider="mock")
    it.end("the answer")
    assert [e["delta"] for e in it.events if e["type"] == "text"] == ["the answer"]


async def test_an_answer_with_blocks_is_streamed_once() -> None:
    it = Streamed()
    await it.emit("provider:request", provider="mock")
    block = {"type": "text", "text": "the answer"}
    await it.emit("content_block:end", block_type="text", block_index=0, block=block)
    it.end("the answer")
    assert [e["delta"] for e in it.events if e["type"] == "text"] == ["the answer"]


async def test_text_of_each_step_is_streamed_once_whether_or_not_the_loop_reports_blocks() -> None:
    for reports in (False, True):
        it = Streamed()
        context = MockContextManager()
        await it.coordinator.mount("context", context)
        await it.emit("prompt:submit", prompt="go")
        for step in ("first", "second"):
            text = {"type": "text", "text": f"the {step} step"}
            calls = [{"type": "tool_call", "id": name, "name": name, "input": {}} for name in "ab"]
            if reports:
                await it.emit("provider:request", provider="mock")
                await it.emit("content_block:end", block_type="text", block_index=0, block=text)
            await context.add_message({"role": "assistant", "content": [text, *calls]})
            # One call after the other, with their results added at the end.
            for name in "ab":
                await it.emit("tool:pre", tool_name=name, tool_input={})
                await it.emit("tool:post", tool_name=name, result={"success": True})
            for name in "ab":
                await context.add_message({"role": "tool", "tool_call_id": name, "content": "ok"})
        text = {"type": "text", "text": "the end"}
        if reports:
            await it.emit("content_block:end", block_type="text", block_index=0, block=text)
        await context.add_message({"role": "assistant", "content": [text]})
        await it.emit("orchestrator:complete", status="success")
        it.end("the end")
        step = ["text", "tool_start", "tool_end", "tool_start", "tool_end"]
        events = [e for e in it.events if e["type"] != "request"]
        assert [e["type"] for e in events] == [*step, *step, "text"], reports
        texts = [e["delta"] for e in events if e["type"] == "text"]
        assert texts == ["the first step", "the second step", "the end"], reports


async def test_stream_writes_the_text_of_blocks_without_deltas() -> None:
    reading, writing = os.pipe()
    coordinator, recorder = ModuleCoordinator(), TurnRecorder()
    renderer = TextRenderer(Output(writing), stream=True)
    subscribe(coordinator, renderer, recorder)
    renderer.turn_started()
    for index, (text, deltas) in enumerate([("Looking.", False), ("Thus", True), ("done.", False)]):
        if index < 2:
            await coordinator.hooks.emit("provider:request", {"provider": "mock"})
        about = {"block_type": "text", "block_index": index}
        if deltas:
            await coordinator.hooks.emit("content_block:delta", {**about, "delta": text})
        block = {"type": "text", "text": text}
        await coordinator.hooks.emit("content_block:end", {**about, "block": block})
    renderer.turn_ended(recorder.result("Thus done."))
    os.close(writing)
    with os.fdopen(reading) as written:
        assert written.read() == "Looking.\nThus\ndone.\n"


async def test_stream_writes_the_texts_of_a_loop_that_reports_no_requests() -> None:
    reading, writing = os.pipe()
    coordinator, recorder = ModuleCoordinator(), TurnRecorder()
    renderer = TextRenderer(Output(writing), stream=True)
    subscribe(coordinator, renderer, recorder)
    renderer.turn_started()
    for text in ("Looking.", "done."):
        block = {"type": "text", "text": text}
        about = {"block_type": "text", "block_index": 0}
        await coordinator.hooks.emit("content_block:end", {**about, "block": block})
    renderer.turn_ended(recorder.result("done."))
    os.close(writing)
    with os.fdopen(reading) as written:
        assert written.read() == "Looking.\ndone.\n"
