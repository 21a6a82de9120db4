"""The terminal renderer: what is on the screen at the end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
import threading
from typing import Any

from amplifier_app.base.stdio import Output
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.terminal import TerminalRenderer
from amplifier_app.runtime.observer import SubSessionFacts
from amplifier_app.runtime.turn import NO_TURN, SubSession
from amplifier_core.hooks import HookRegistry
from amplifier_core.models import ToolResult
from tests.app.render.screen import screen


class Shown:
    """A renderer on a pseudo-terminal of 60 columns, its events emitted by a real registry."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self._slave = slave
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()
        self.renderer = TerminalRenderer(AnsiScreen(Output(slave)), quiet=quiet)
        self.hooks = HookRegistry()
        for event, handler in self.renderer.handlers().items():
            self.hooks.register(event, handler)

    def _drain(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            if not part:
                return
            self._read.append(part)

    async def emit(self, event: str, **data: Any) -> None:
        result = await self.hooks.emit(event, data)
        assert result.action == "continue"

    async def say(self, *pieces: str, kind: str = "text", index: int = 0) -> None:
        about = {"block_type": kind, "block_index": index}
        await self.emit("content_block:start", **about)
        for piece in pieces:
            await self.emit("content_block:delta", delta=piece, **about)
        field = "text" if kind == "text" else "thinking"
        block = {"type": kind, field: "".join(pieces)}
        await self.emit("content_block:end", total_blocks=1, block=block, **about)

    def end(self, response: str = "", **more: Any) -> None:
        self.renderer.turn_ended(NO_TURN._replace(response=response, status="success", **more))

    def close(self) -> list[str]:
        """The final screen, without trailing empty lines."""
        self.renderer.close()
        os.close(self._slave)
        self._reader.join(10)
        os.close(self._master)
        lines = screen(b"".join(self._read).decode())
        while lines and not lines[-1]:
            lines.pop()
        return lines


async def test_blocks_appear_once_and_in_order() -> None:
    it = Shown()
    it.renderer.turn_started()
    await it.emit("provider:request", tools=[])
    text = "# Head\n\nOne [bold]two[/bold].\n\n1. a\n2. b\n3. c\n\nEnd"
    for character in text:
        about = {"block_type": "text", "block_index": 0}
        await it.emit("content_block:delta", delta=character, **about)
        await asyncio.sleep(0.003)
    it.end(text)
    assert it.close() == [
        "Head", "", "One [bold]two[/bold].", "", "1. a", "2. b", "3. c", "", "End",
    ]  # fmt: skip


async def test_thinking_comes_before_its_text() -> None:
    it = Shown()
    it.renderer.turn_started()
    await it.emit("provider:request", tools=[])
    await it.say("Let me", " see.\nYes.", kind="thinking")
    await it.say("The answer.", index=1)
    it.end("The answer.")
    assert it.close() == ["Let me see.", "Yes.", "", "The answer."]


async def test_blocks_without_deltas_are_shown() -> None:
    it = Shown()
    it.renderer.turn_started()
    await it.emit("provider:request", tools=[])
    about = {"block_type": "text", "block_index": 0}
    await it.emit("content_block:end", block={"type": "text", "text": "Whole."}, **about)
    it.end("Whole.")
    assert it.close() == ["Whole."]


async def test_the_response_of_a_loop_without_events_is_shown() -> None:
    it = Shown()
    it.renderer.turn_started()
    it.end("Just *this*.")
    assert it.close() == ["Just this."]


async def test_a_remark_instead_of_an_answer_is_not_shown() -> None:
    it = Shown()
    it.renderer.turn_started()
    it.renderer.turn_ended(NO_TURN._replace(response="Max iterations reached", status="incomplete"))
    assert it.close() == []


async def test_parallel_tools_each_get_a_line_and_long_results_fold() -> None:
    it = Shown()
    it.renderer.full_result_hint = "elsewhere"
    it.renderer.turn_started()
    await it.emit("provider:request", tools=["bash"])
    calls = [
        {"tool_name": "bash", "tool_call_id": str(n), "tool_input": {"command": f"cmd {n}"}}
        for n in range(3)
    ]
    for call in calls:
        await it.emit("tool:pre", **call)
    result = ToolResult(output="\n".join(f"row {n}" for n in range(10)))
    await it.emit("tool:post", tool_result=result, duration_ms=1500, **calls[2])
    failed = ToolResult(success=False, error={"message": "exit 1"})
    await it.emit("tool:post", tool_result=failed, duration_ms=3, **calls[0])
    await it.emit("tool:error", error={"message": "denied: no"}, **calls[1])
    await it.say("Done.")
    it.end("Done.")
    lines = it.close()
    assert lines[:7] == [
        "✓ bash cmd 2 · 1.5 s",
        "    row 0",
        "    row 1",
        "    row 2",
        "    row 3",
        "    … 6 more lines (elsewhere)",
        "✗ bash cmd 0 · 3 ms",
    ]
    assert lines[-3:] == ["    denied: no", "", "Done."]


async def test_the_last_output_line_of_a_running_tool_is_shown() -> None:
    it = Shown()
    it.renderer.turn_started()
    call = {"tool_name": "bash", "tool_call_id": "c1", "tool_input": {"command": "make"}}
    await it.emit("tool:pre", span_id="s1", **call)
    await it.emit("tool:output", span_id="s2", text="of another call\n")
    await it.emit("tool:output", span_id="s1", text="first line\nlast \x1b[31mline\n")
    await asyncio.sleep(0.3)
    seen = b"".join(it._read).decode()
    assert "last line" in seen.replace("\x1b[31m", "?")
    assert "first line" not in seen
    assert "another call" not in seen
    await it.emit("tool:post", span_id="s1", tool_result=ToolResult(output="done"), **call)
    it.end()
    assert [line.split(" · ")[0] for line in it.close()] == ["✓ bash make", "    done"]


async def test_a_sub_agent_is_one_line_both_running_and_finished() -> None:
    it = Shown()
    it.renderer.turn_started()
    asked = {"agent": "reader", "instruction": "look at \x1b[2Jit"}
    call = {"tool_name": "task", "tool_call_id": "c1", "tool_input": asked}
    await it.emit("tool:pre", span_id="s1", **call)
    await it.emit("task:start", span_id="s1", sub_session_id="s-1")
    facts = SubSessionFacts("s-1", "s", "reader", 1, False, asked["instruction"])
    it.renderer.sub_session_started(facts)
    it.renderer.sub_session_doing("s-1", "read_file a.txt")
    await asyncio.sleep(0.3)
    seen = b"".join(it._read).decode()
    assert "reader · 1 step → read_file a.txt" in seen
    assert "\x1b[2J" not in seen
    ended = SubSession("s-1", "s", "reader", "success", 1, {}, None, 0.1)
    it.renderer.sub_session_ended(ended)
    output = {"response": "It is fine.", "session_id": "s-1", "usage": {"input_tokens": 3}}
    await it.emit(
        "tool:post", span_id="s1", tool_result=ToolResult(output=output), duration_ms=5, **call
    )
    it.end()
    assert it.close() == ["✓ task reader: look at it · 5 ms", "    It is fine."]


async def test_quiet_shows_only_the_answer_and_warnings() -> None:
    it = Shown(quiet=True)
    it.renderer.turn_started()
    await it.emit("provider:request", tools=["bash"])
    await it.say("hm", kind="thinking")
    call = {"tool_name": "bash", "tool_call_id": "1", "tool_input": {}}
    await it.emit("tool:pre", **call)
    await it.emit("tool:post", tool_result=ToolResult(output="x"), **call)
    it.renderer.notice("by the way", "info", "x")
    it.renderer.notice("mind this", "warning", "x")
    await it.say("Answer.")
    it.end("Answer.")
    assert it.close() == ["! mind this", "Answer."]


async def test_control_characters_are_removed_everywhere() -> None:
    it = Shown()
    evil = "a\x1b]0;t\x07b\x1b[2Jc\x9bd\u202ee\x08"
    it.renderer.turn_started()
    await it.emit("provider:request", tools=["x"])
    await it.say(*evil, kind="thinking")
    call = {"tool_name": evil, "tool_call_id": "1", "tool_input": {"path": evil}}
    await it.emit("tool:pre", **call)
    await it.emit("tool:post", tool_result=ToolResult(output=evil), **call)
    await it.emit("tool:error", error={"message": evil}, **{**call, "tool_call_id": "2"})
    await it.emit("user:notification", message=evil)
    await it.emit("provider:retry", provider=evil, error_message=evil, delay=1.0)
    await it.emit("provider:fallback", provider=evil, fallback=evil, error={"message": evil})
    await it.emit("context:overflow", model=evil, before_tokens=9, after_tokens=5)
    await it.say(*evil, index=1)
    it.end(evil)
    lines = it.close()
    assert any("abcde" in line for line in lines)
    assert not [line for line in lines if any(c in line for c in "\x1b\x07\x08\x9b\u202e")]


async def test_a_closed_terminal_stops_the_turn() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    renderer = TerminalRenderer(AnsiScreen(Output(writing)))
    stopped: list[bool] = []
    renderer.on_failure = lambda: stopped.append(True)
    renderer.turn_started()
    renderer.notice("hello", "info", "x")
    renderer.close()
    os.close(writing)
    assert stopped
