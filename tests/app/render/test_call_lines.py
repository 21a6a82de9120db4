"""Tool calls where nothing is redrawn: `--plain`, and stderr of a run whose stdout is redirected."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.render import call_lines
from amplifier_app.render.call_lines import CallLines
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.subscriptions import subscribe
from amplifier_app.runtime.turns.turn import EventHandler
from amplifier_app.runtime.turns.turn_recorder import TurnRecorder
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.models import ToolResult
from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan
from tests.support.terminal import Terminal


def call(number: int, name: str, **given: Any) -> dict[str, Any]:
    return {"tool_name": name, "tool_call_id": str(number), "tool_input": given}


FAILED = ToolResult(
    success=False, output="one\nmake: *** no rule\n[exit code 2]", error={"message": "exit code 2"}
)
PUBLISHED = {"stderr": "no", "stdout": "", "returncode": 2}
"""The fields of published tools for commands."""


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        ({"tool_result": ToolResult(output="x")}, "1 bash make: ok, 5 ms"),
        ({"tool_result": FAILED}, "1 bash make: failed, 5 ms: exit code 2: make: *** no rule"),
        (
            {"tool_result": {"success": False, "output": "it broke\nbadly"}},
            "1 bash make: failed, 5 ms: it broke",
        ),
        ({"result": {"success": False, "output": PUBLISHED}}, "1 bash make: failed, 5 ms: no"),
        (
            {"result": {"success": False, "output": None, "error": {"message": "gone"}}},
            "1 bash make: failed, 5 ms: gone",
        ),
        (
            {"error": {"type": "OSError", "message": "no\nspace"}},
            "1 bash make: failed, 5 ms: no space",
        ),
        (
            {"error": {"type": "Denied", "message": "denied: not now"}},
            "1 bash make: denied: not now",
        ),
    ],
)
async def test_a_line_says_how_a_call_ended(ended: dict[str, Any], line: str) -> None:
    lines: list[str] = []
    shown = CallLines(lines.append, int, 200)
    shown.handlers()["tool:pre"]("tool:pre", call(1, "bash", command="make"))
    event = "tool:error" if "error" in ended else "tool:post"
    shown.handlers()[event](event, {**call(1, "bash", command="make"), **ended, "duration_ms": 5})
    shown.turn_ended()
    assert lines == [line]


async def test_a_denied_call_ends_in_loops_that_do_not_say_so() -> None:
    lines: list[str] = []
    calls = CallLines(lines.append, int, 200)

    class Lines(Renderer):
        def handlers(self) -> dict[str, EventHandler]:
            return calls.handlers()

    coordinator = ModuleCoordinator()
    subscribe(coordinator, Lines(), TurnRecorder())
    emit = coordinator.hooks.emit
    await emit("tool:pre", call(1, "bash", command="make"))
    await emit("tool:pre", call(2, "bash", command="ls"))
    await emit("approval:denied", {"tool_name": "bash", "reason": "not now"})
    await emit("tool:post", {**call(2, "bash", command="ls"), "duration_ms": 5})
    await emit("provider:request", {})
    await emit("provider:request", {})
    # Of an interrupted prompt nothing is left for the next one.
    await emit("tool:pre", call(3, "bash", command="make"))
    await emit("execution:start", {"prompt": "next"})
    await emit("provider:request", {})
    assert lines == ["2 bash ls: ok, 5 ms", "1 bash make: not now"]
    # A loop that reports no requests: the next answer, or the end of the prompt.
    lines.clear()
    await emit("tool:pre", call(4, "bash", command="make"))
    await emit("content_block:end", {"block_type": "text", "source": "app-unreported-blocks"})
    await emit("tool:pre", call(5, "nope"))
    await emit("error:tool", {"error_type": "tool_not_found", "error_message": "no such tool"})
    await emit("tool:pre", call(6, "bash", command="make"))
    await emit("orchestrator:complete", {"status": "cancelled"})
    await emit("tool:pre", call(7, "bash", command="make"))
    await emit("orchestrator:complete", {"status": "success"})
    refused = "refused by a hook of the plan"
    assert lines == [
        f"4 bash make: {refused}",
        "5 nope: failed, 0 ms: no such tool",
        f"7 bash make: {refused}",
    ]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("Denied", "1 mail: denied by you"),
        ("ToolError", "1 mail: failed, 5 ms: denied by the user"),
    ],
)
async def test_only_a_denial_is_shown_as_yours(kind: str, line: str) -> None:
    lines: list[str] = []
    calls = CallLines(lines.append, int, 200)

    class Lines(Renderer):
        is_for_people = True

        def handlers(self) -> dict[str, EventHandler]:
            return calls.handlers()

    coordinator = ModuleCoordinator()
    subscribe(coordinator, Lines(), TurnRecorder())
    error = {"type": kind, "message": "denied by the user"}
    await coordinator.hooks.emit("tool:pre", call(1, "mail"))
    await coordinator.hooks.emit(
        "tool:error", {**call(1, "mail"), "error": error, "duration_ms": 5}
    )
    assert lines == [line]


async def test_a_long_call_has_a_line_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_lines, "LONG_CALL_SECONDS", 0.01)
    lines: list[str] = []
    shown = CallLines(lines.append, lambda call_id: None, 200)
    shown.handlers()["tool:pre"]("tool:pre", call(1, "bash", command="make"))
    await asyncio.sleep(0.1)
    assert lines == ["bash make: running"]
    shown.turn_ended()
    assert lines[1:] == ["bash make: interrupted"]


async def test_a_call_does_not_run_while_one_of_its_answer_waits_for_approval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_lines, "LONG_CALL_SECONDS", 0.01)
    lines: list[str] = []
    shown = CallLines(lines.append, lambda call_id: None, 200)
    handlers = shown.handlers()
    for data in (call(1, "bash", command="ls"), call(2, "bash", command="make")):
        handlers["tool:pre"]("tool:pre", data)
    handlers["approval:required"]("approval:required", {"tool_name": "bash"})
    await asyncio.sleep(0.05)
    assert lines == []
    handlers["approval:granted"]("approval:granted", {"tool_name": "bash"})
    await asyncio.sleep(0.05)
    assert lines == ["bash ls: running", "bash make: running"]
    shown.turn_ended()


CALLS = [
    {"name": "write_file", "input": {"path": "a.txt", "content": "x"}},
    {"name": "read_file", "input": {"path": "missing.txt"}},
]
REPLIES = [{"tool_calls": CALLS}, "done"]


def test_plain_output_shows_how_calls_ended_and_what_a_turn_used(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, REPLIES, tools=[{"module": "tool-filesystem"}])
    with Terminal("run", "--plain", "-f", plan, "go", cwd=tmp_path) as terminal:
        terminal.until(r"\[1 write_file a\.txt: ok, \d+ ms\]")
        terminal.until(r"\[2 read_file missing\.txt: failed, \d+ ms: 'missing\.txt': no such file")
        terminal.until(r"done\s+\[2 steps · .* · 1 file changed\]")
        assert terminal.finish() == 0


def test_stderr_shows_how_calls_ended_and_what_a_turn_used(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, REPLIES, tools=[{"module": "tool-filesystem"}])
    done = run_amplifier("run", "-v", "-f", plan, "go", cwd=tmp_path)
    assert done.stdout == "done\n"
    lines = done.stderr.splitlines()
    assert any(re.fullmatch(r"amplifier: 1 write_file a\.txt: ok, \d+ ms", line) for line in lines)
    assert any("2 read_file missing.txt: failed, " in line for line in lines)
    assert any(re.match("amplifier: 2 steps · .* · 1 file changed$", line) for line in lines)
