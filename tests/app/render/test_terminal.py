"""The terminal renderer: what is on the screen at the end."""

import asyncio
import fcntl
import os
import re
import struct
import termios
import threading
import time
from decimal import Decimal
from typing import Any

import pytest

from amplifier_app.base.stdio import Output
from amplifier_app.render.ansi import plain
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.terminal import Progress, TerminalRenderer
from amplifier_app.runtime.observers.observer import SubSessionFacts
from amplifier_app.runtime.turns.turn import NO_TURN, SubSession
from amplifier_core.hooks import HookRegistry
from amplifier_core.models import ToolResult
from tests.support.screen import screen


class Shown:
    """A renderer on a pseudo-terminal, its events emitted by a real registry."""

    def __init__(self, *, quiet: bool = False, chat: bool = False, columns: int = 60) -> None:
        self._columns = columns
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        self._slave = slave
        self.written: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()
        self.renderer = TerminalRenderer(AnsiScreen(Output(slave)), quiet=quiet, chat=chat)
        self.hooks = HookRegistry()
        for event, handler in self.renderer.handlers().items():
            self.hooks.register(event, handler)
        self.renderer.turn_started()

    def _drain(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            if not part:
                return
            self.written.append(part)

    async def emit(self, event: str, **data: Any) -> None:
        result = await self.hooks.emit(event, data)
        assert result.action == "continue"

    def seen(self) -> list[str]:
        """The screen now."""
        return screen(b"".join(self.written).decode(), self._columns)

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
        lines = self.seen()
        while lines and not lines[-1]:
            lines.pop()
        return lines


async def test_blocks_appear_once_and_in_order() -> None:
    it = Shown()
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


async def test_thinking_is_folded_unless_requested() -> None:
    it = Shown(chat=True)
    for wanted in (None, True):
        it.renderer.visibility.thinking = wanted
        it.renderer.turn_started()
        await it.emit("provider:request", tools=[])
        await it.say("Let me", " see.\nYes.", kind="thinking")
        await it.say("The answer.", index=1)
        it.end("The answer.")
    folded, *rest = it.close()
    assert re.fullmatch(r"✻ thought for \d+ ms \(/think shows it\)", folded)
    assert rest == ["", "The answer.", "", "Let me see.", "Yes.", "", "The answer."]


async def test_blocks_without_deltas_are_shown() -> None:
    it = Shown()
    await it.emit("provider:request", tools=[])
    block = {"type": "text", "text": "Whole."}
    await it.emit("content_block:end", block=block, block_type="text", block_index=0)
    it.end("Whole.")
    assert it.close() == ["Whole."]


async def test_the_response_of_a_loop_without_events_is_shown() -> None:
    it = Shown()
    it.end("Just *this*.")
    assert it.close() == ["Just this."]


async def test_a_remark_instead_of_an_answer_is_not_shown() -> None:
    it = Shown()
    it.renderer.turn_ended(NO_TURN._replace(response="Max iterations reached", status="incomplete"))
    assert it.close() == []


def call(number: int, name: str, **given: Any) -> dict[str, Any]:
    return {"tool_name": name, "tool_call_id": str(number), "tool_input": given}


async def finished(it: Shown, data: dict[str, Any], output: Any, **result: Any) -> None:
    result = {"tool_result": ToolResult(output=output, **result), "duration_ms": 5}
    await it.emit("tool:pre", **data)
    await it.emit("tool:post", **result, **data)


async def shown(data: dict[str, Any], output: Any, columns: int = 60, **result: Any) -> list[str]:
    """The screen after one call."""
    it = Shown(columns=columns)
    await finished(it, data, output, **result)
    it.end()
    return it.close()


async def test_parallel_tools_each_get_a_line_and_long_results_fold() -> None:
    it = Shown()
    it.renderer.full_result_hint = "elsewhere"
    it.renderer.call_number = int
    await it.emit("provider:request", tools=["bash"])
    calls = [call(n, "bash", command=f"cmd {n}") for n in range(1, 5)]
    for data in calls:
        await it.emit("tool:pre", **data)
    result = ToolResult(output="\n".join(f"row {n}" for n in range(10)) + "\n[exit code 0]")
    await it.emit("tool:post", tool_result=result, duration_ms=1500, **calls[2])
    failed = ToolResult(
        success=False, output="one\n[exit code 4]", error={"message": "exit code 4"}
    )
    await it.emit("tool:post", tool_result=failed, duration_ms=3, **calls[0])
    denied = {"type": "Denied", "message": "denied: bash: not now. Do not try again."}
    await it.emit("tool:error", error=denied, **calls[1])
    await it.emit("tool:post", tool_result=result, duration_ms=1500, **calls[3])
    await it.say("Done.")
    it.end("Done.")
    tail = ["    row 6", "    row 7", "    row 8", "    row 9"]
    assert it.close() == [
        "✓ 3 bash cmd 3 · 1.5 s · 10 lines, last 4:", *tail, "    elsewhere",
        "✗ 1 bash cmd 1 · 3 ms · exit code 4", "    one",
        "✗ 2 bash cmd 2 · denied", "    bash: not now.",
        "✓ 4 bash cmd 4 · 1.5 s · 10 lines, last 4:", *tail,
        "", "Done.",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 80, 120])
async def test_a_call_is_one_line_whatever_its_input(columns: int) -> None:
    it = Shown(columns=columns)
    await finished(it, call(1, "bash", command="echo " + "word " * 100 + "\nls"), "")
    await finished(it, call(2, "grep", pattern="def .*", path="src"), "a.py:1: def a\n" * 6)
    await finished(it, call(3, "task", agent="reader", instruction="look"), "fine")
    await finished(it, call(4, "read_file", path="a.txt"), "x\n" * 30)
    it.end()
    lines = it.close()
    assert [line for line in lines if line[0] != " "] == [
        next(line for line in lines if line.startswith("✓ bash echo word word")),
        "✓ grep def .* in src · 5 ms · 6 lines, first 4:"[:columns],
        "✓ task reader: look · 5 ms",
        "✓ read_file a.txt · 5 ms · 30 lines",
    ] or columns == 40
    assert "… · 5 ms" in lines[0]
    assert all(len(line) <= columns for line in lines)


@pytest.mark.parametrize("columns", [40, 80])
async def test_calls_that_run_when_the_turn_ends_are_interrupted(columns: int) -> None:
    it = Shown(columns=columns)
    await it.emit("tool:pre", **call(1, "bash", command="sleep " * 40))
    it.end()
    (line,) = it.close()
    assert line.startswith("✗ bash sleep")
    assert line.endswith("… · interrupted")
    assert len(line) == columns


async def test_a_failed_call_shows_more_of_its_output() -> None:
    output = "\n".join(f"row {n}" for n in range(30)) + "\n[exit code 2]"
    failed: dict[str, Any] = {"success": False, "error": {"message": "exit code 2"}}
    lines = await shown(call(1, "bash", command="x"), output, **failed)
    assert lines[0] == "✗ bash x · 5 ms · exit code 2 · 30 lines, last 12:"
    assert lines[1:] == [f"    row {n}" for n in range(18, 30)]


async def test_the_error_of_a_call_is_wrapped_between_words() -> None:
    text = "unknown tool 'x'; available tools: list_directory"
    lines = await shown(call(1, "x"), text, 40, success=False, error={"message": text})
    assert lines[1:] == ["    unknown tool 'x'; available tools:", "    list_directory"]


@pytest.mark.parametrize("columns", [40, 80, 120])
async def test_an_edit_shows_its_changes(columns: int) -> None:
    diff = "edited a.py in 1 place\n--- a/a.py\n+++ b/a.py\n@@ -7,3 +7,4 @@\n x = 1\n-y = 2\n+y = 3\n+z = 4\n end\n"
    assert await shown(call(1, "edit_file", file_path="a.py"), diff, columns) == [
        "✓ edit_file a.py · +2 −1 · 5 ms",
        "     7   x = 1",
        "     8 - y = 2",
        "     8 + y = 3",
        "     9 + z = 4",
        "    10   end",
    ]


async def test_a_to_do_list_is_a_checklist_and_pinned_while_it_is_open() -> None:
    it = Shown(columns=80)
    steps = {"Read the code": "completed", "Fix the bug": "in_progress", "Run the tests": "pending"}
    todos = [{"content": content, "status": status} for content, status in steps.items()]
    await finished(it, call(1, "todo", action="create", todos=todos), {"status": "created"})
    await asyncio.sleep(0.2)
    seen = it.seen()
    checklist = "☑ Read the code   ▸ Fix the bug   ☐ Run the tests"
    assert seen[0] == "✓ todo 1 of 3 done · 5 ms"
    assert seen[1] == f"    {checklist}"
    assert seen[3].startswith(f" {checklist}")
    assert seen[3].endswith("1/3")
    it.end()
    assert it.close() == seen[:2]


async def test_images_are_placeholders() -> None:
    data = "iVBORw0KGgo" + "A" * 45_333
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}]
    lines = await shown(call(1, "read_file", path="a.png"), None, content=content)
    assert lines[-1] == "    [image: image/png 34 kB]"


async def test_retries_are_one_live_line_and_one_summary() -> None:
    it = Shown()
    await it.emit("provider:request", tools=[], model="m-1")
    # The second wait is cut short by the answer.
    for attempt, delay, seconds in ((1, 0.6, 0.7), (2, 4.0, 0.2)):
        await it.emit(
            "provider:retry", error_type="RateLimitError", error_message="429", delay=delay,
            attempt=attempt, max_retries=4, provider="p",
        )  # fmt: skip
        await asyncio.sleep(seconds)
    seen = it.seen()
    assert re.fullmatch(
        r". rate limited, retrying in [34] s \(2 of 4\) · Ctrl-C to give up", seen[-1]
    )
    await it.say("Done.")
    it.end("Done.")
    assert it.close() == ["· waited 1 s for the rate limit, tried 3 times", "", "Done."]


@pytest.mark.parametrize(
    ("kind", "status", "message", "live", "summary"),
    [
        ("ProviderUnavailableError", 529, "", "the provider is overloaded", "for the overloaded provider"),
        ("ProviderUnavailableError", None, "{'type': 'overloaded_error'}", "the provider is overloaded", "for the overloaded provider"),
        ("ProviderUnavailableError", 500, "", "server error (500)", "after a server error"),
        ("ProviderUnavailableError", 503, "", "the provider is unavailable (503)", "for the unavailable provider"),
        ("ProviderUnavailableError", None, "", "the provider is unavailable", "for the unavailable provider"),
        ("NetworkError", None, "", "connection failed", "for the connection"),
        ("LLMTimeoutError", None, "", "no answer in time", "after a timeout"),
        ("StreamError", None, "", "the answer was cut off", "after an answer was cut off"),
    ],
)  # fmt: skip
def test_a_retry_is_shown_with_its_cause(
    kind: str,
    status: int | None,
    message: str,
    live: str,
    summary: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    about = {"error_type": kind, "status_code": status, "error_message": message, "delay": 0.6}
    progress.retries(about)
    assert plain(progress.line(80, "Esc", ""))[2:].startswith(f"{live}, retrying")
    now += 0.6
    assert progress.take_retry_summary() == f"waited 1 s {summary}"


async def test_a_long_cause_of_a_retry_leaves_room_for_the_key() -> None:
    it = Shown()
    about = {"error_message": "the model is warming up " * 9, "attempt": 1, "max_retries": 4}
    await it.emit("provider:retry", error_type="LLMError", delay=9.0, provider="p", **about)
    await asyncio.sleep(0.2)
    seen = it.seen()
    assert re.fullmatch(
        r". the model is.*… retrying in \d s \(1 of 4\) · Ctrl-C to give up", seen[-1]
    )
    it.end()
    it.close()


async def test_a_retry_that_was_stopped_or_was_between_prompts_is_not_counted() -> None:
    it = Shown()
    await it.emit("provider:retry", error_type="RateLimitError", delay=9.0, provider="p")
    it.renderer.turn_started()
    for delay, seconds in ((0.3, 0.31), (0.3, 0.31), (60.0, 0.01)):
        await it.emit("provider:retry", error_type="RateLimitError", delay=delay, provider="p")
        await asyncio.sleep(seconds)
    it.end()
    assert it.close() == ["· waited 1 s for the rate limit, tried 3 times"]


async def test_the_reply_to_a_command_splits_no_line_of_the_answer() -> None:
    it = Shown(chat=True)
    await it.emit("provider:request", tools=[])
    about = {"block_type": "text", "block_index": 0}
    await it.emit("content_block:delta", delta="one tw", **about)
    it.renderer.message_sent("/cost")
    it.renderer.reply("No usage yet.")
    await it.say("o three")
    it.end("one two three")
    assert it.close()[:4] == ["› /cost", "No usage yet.", "", "one two three"]


async def test_the_live_line_says_what_goes_on() -> None:
    it = Shown(chat=True, columns=80)
    await it.emit("provider:request", tools=[], model="m-1")
    await it.emit("content_block:delta", block_type="thinking", block_index=0, delta="x" * 400)
    await asyncio.sleep(1.3)
    seen = it.seen()
    assert re.fullmatch(r". m-1 thinking · 1 s · ↓ 100 tokens +Esc stop · type to steer", seen[-1])
    it.end()
    it.close()


@pytest.mark.parametrize("columns", [40, 80, 120])
async def test_a_turn_ends_with_what_it_used(columns: int) -> None:
    it = Shown(chat=True, columns=columns)
    await finished(it, call(1, "write_file", path="a.txt", content="a\nb\n"), "wrote a.txt")
    usage = {"input_tokens": 38_200, "output_tokens": 1900, "cache_read_tokens": 34_762}
    it.end(steps=5, usage=usage, cost=Decimal("0.0431"))
    together = " ".join(line.strip() for line in it.close()[2:])
    assert re.fullmatch(
        r"5 steps · \d+ ms · 38\.2k in \(91 % cached\) · 1\.9k out · \$0\.043 · "
        r"1 file changed /diff /undo",
        together,
    )


async def test_the_last_output_line_of_a_running_tool_is_shown() -> None:
    it = Shown()
    data = call(1, "bash", command="make")
    await it.emit("tool:pre", span_id="s1", **data)
    await it.emit("tool:output", span_id="s2", text="of another call\n")
    await it.emit("tool:output", span_id="s1", text="first line\nlast \x1b[31mline\n")
    await asyncio.sleep(0.3)
    seen = b"".join(it.written).decode()
    assert "last line" in seen.replace("\x1b[31m", "?")
    assert "first line" not in seen
    assert "another call" not in seen
    await it.emit("tool:post", span_id="s1", tool_result=ToolResult(output="done"), **data)
    it.end()
    assert [line.split(" · ")[0] for line in it.close()] == ["✓ bash make", "    done"]


async def test_a_sub_agent_is_one_line_both_running_and_finished() -> None:
    it = Shown()
    asked = {"agent": "reader", "instruction": "look at \x1b[2Jit"}
    data = call(1, "task", **asked)
    await it.emit("tool:pre", span_id="s1", **data)
    await it.emit("task:start", span_id="s1", sub_session_id="s-1")
    facts = SubSessionFacts("s-1", "s", "reader", 1, False, asked["instruction"])
    it.renderer.sub_session_started(facts)
    it.renderer.sub_session_doing("s-1", "read_file a.txt")
    await asyncio.sleep(0.3)
    seen = b"".join(it.written).decode()
    assert "reader · 1 step → read_file a.txt" in seen
    assert "\x1b[2J" not in seen
    ended = SubSession("s-1", "s", "reader", "success", 1, {}, None, 100)
    it.renderer.sub_session_ended(ended)
    output = {"response": "It is fine.", "session_id": "s-1", "usage": {"input_tokens": 3}}
    result = {"tool_result": ToolResult(output=output), "duration_ms": 5}
    await it.emit("tool:post", span_id="s1", **result, **data)
    it.end()
    assert it.close() == ["✓ task reader: look at it · 5 ms", "    It is fine."]


async def test_quiet_shows_only_the_answer_and_warnings() -> None:
    it = Shown(quiet=True)
    await it.emit("provider:request", tools=["bash"])
    await it.say("hm", kind="thinking")
    await finished(it, call(1, "bash"), "x")
    it.renderer.notice("by the way", "info", "x")
    it.renderer.notice("mind this", "warning", "x")
    await it.say("Answer.")
    it.end("Answer.")
    assert it.close() == ["! mind this", "", "Answer."]


async def test_control_characters_are_removed_everywhere() -> None:
    it = Shown()
    evil = "a\x1b]0;t\x07b\x1b[2Jc\x9bd\u202ee\x08"
    await it.emit("provider:request", tools=["x"])
    await it.say(*evil, kind="thinking")
    await finished(it, call(1, evil, path=evil), evil)
    await it.emit("tool:error", error={"message": evil}, **call(2, evil, path=evil))
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
