"""The keys of the chat on a real pseudo-terminal, compared as the screen of an emulator."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_chat_pty import leave, prompts
from tests.support.plans import mock_plan, module_folder
from tests.support.processes import is_alive
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, PASTE, TAB, UP, Chat, Terminal

CTRL_R, CTRL_V, ESC, SHIFT_TAB = "\x12", "\x16", "\x1b", "\x1b[Z"

STREAM = {"chunk_size": 5, "chunk_delay": 0.02}
LONG = {"text": "word " * 100_000}


def line_is(text: str) -> Callable[[list[str]], bool]:
    """The input line has this text."""
    return lambda lines: any(line == f"› {text}".rstrip() for line in lines[-9:])


def shows(pattern: str) -> Callable[[list[str]], object]:
    return lambda lines: re.search(pattern, "\n".join(lines), re.MULTILINE)


@pytest.mark.thorough
def test_history_search_completion_and_clearing(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"], mock={"on_end": "repeat"})
    with Terminal("run", "-f", plan, cwd=tmp_path) as terminal:
        for text in ("explain the parser", "run the tests"):
            terminal.prompt()
            terminal.type(text + ENTER)
        terminal.prompt()
        # Ctrl-R: Enter accepts and edits, Ctrl-C and Esc abort.
        terminal.type("draft" + CTRL_R + "par")
        terminal.until_lines(line_is("explain the parser"))
        terminal.type(CTRL_C)
        terminal.until_lines(line_is("draft"))
        terminal.type(CTRL_R + "par")
        terminal.until_lines(line_is("explain the parser"))
        terminal.type(ESC)
        terminal.until_lines(line_is("draft"))
        terminal.type(CTRL_R + "par")
        terminal.until_lines(line_is("explain the parser"))
        terminal.type(ENTER)
        terminal.until_lines(shows("(?m)^ mock-model"))
        terminal.type(" again")
        terminal.until_lines(line_is("explain the parser again"))
        terminal.type(CTRL_C)
        terminal.until_lines(line_is(""))
        # Completion of a command and of its argument.
        terminal.type("/thi")
        terminal.until_lines(shows(r"/think +\[on\|off\] +Show or hide"))
        terminal.type(TAB + " o")
        terminal.until_lines(shows(r"(?m)^ ?on *$"))
        terminal.enter(TAB + ENTER, "Thinking is shown")
        # Twice at an empty line leaves; anything typed in between cancels that, and other notes are no first time.
        terminal.prompt()
        terminal.type(CTRL_V)
        terminal.until_lines(shows("cannot read the clipboard"))
        terminal.type(CTRL_C)
        terminal.until_lines(shows("Ctrl-C again to leave"))
        terminal.type("x" + CTRL_C)
        terminal.until_lines(line_is(""))
        terminal.type(CTRL_C)
        terminal.until_lines(shows("Ctrl-C again to leave"))
        terminal.type(CTRL_C)
        assert terminal.finish() == 0


@pytest.mark.parametrize(
    "key", [CTRL_C, pytest.param(ESC, marks=pytest.mark.thorough)], ids=["Ctrl-C", "Esc"]
)
def test_a_streaming_answer_stops_at_once_and_can_be_continued(tmp_path: Path, key: str) -> None:
    plan = mock_plan(tmp_path, [LONG, "the rest"], mock=STREAM)
    with Chat("-f", plan, "--session", "s1", cwd=tmp_path) as terminal:
        terminal.enter("hi", "word word word")
        terminal.type("half a th")
        terminal.type(key)
        terminal.until("stopped; Enter on an empty line continues")
        terminal.prompt()
        terminal.until_lines(line_is("half a th"))
        terminal.ask(CTRL_C, "› Continue.", "the rest")
        leave(terminal)
    assert prompts("s1") == ["hi", "Continue."]
    lines = terminal.lines()
    assert not any("⠋" in line or line == "›" for line in lines), "the live region is gone"


def test_a_running_tool_is_waited_for_and_killed_on_request(tmp_path: Path) -> None:
    def call(command: str) -> dict[str, Any]:
        return {"tool_calls": [{"name": "bash", "input": {"command": command}}]}

    replies = [call("sleep 2; touch done"), call("sleep 3600"), "never"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-bash"}])
    with Chat("-f", plan, "--session", "s1", cwd=tmp_path) as terminal:
        terminal.enter("one", "bash sleep 2")
        terminal.type(ESC)
        terminal.until(
            r"stopping after `sleep 2; touch done` \([\d.]+ m?s\) · press again to kill it"
        )
        lines = terminal.until_lines(shows(r"bash sleep 2.* Esc again to stop now$"))
        assert "Esc stop" not in "\n".join(lines)
        terminal.until("✓ .*stopped")
        assert (tmp_path / "done").exists()
        terminal.prompt()
        terminal.enter("two", "bash sleep 3600")
        terminal.until_lines(shows(r"bash sleep 3600.* Esc stop · type to steer$"))
        terminal.type(CTRL_C)
        terminal.until("press again to kill it")
        terminal.type(CTRL_C)
        terminal.until("stopped; Enter")
        terminal.prompt()
        leave(terminal)


def test_long_pastes_are_folded_and_sent_whole(tmp_path: Path) -> None:
    text = "\n".join(f"row {number}" for number in range(200))
    with Chat("-f", mock_plan(tmp_path, ["ok", "ok"]), cwd=tmp_path) as terminal:
        terminal.type("see " + PASTE.format(text))
        terminal.until_lines(line_is("see [pasted 200 lines]"))
        terminal.type("\x7f")  # Backspace removes it as a whole
        terminal.until_lines(line_is("see"))
        terminal.ask(PASTE.format(text) + " please", "ok")
        assert any("› see [pasted 200 lines] please" in line for line in terminal.lines())
        assert prompts(leave(terminal)) == [f"see {text} please"]


def test_the_line_is_there_before_the_session_and_keeps_what_is_typed(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    (slow / "amplifier_module_hooks_slow").mkdir(parents=True)
    (slow / "amplifier_module_hooks_slow" / "__init__.py").write_text(
        "import asyncio\n__amplifier_module_type__ = 'hook'\n\n\n"
        "async def mount(coordinator, config=None):\n    await asyncio.sleep(2)\n"
        "    if (config or {}).get('fails'):\n        raise RuntimeError('no luck')\n"
    )
    hooks = [{"module": "hooks-slow", "source": str(slow)}]
    plan = mock_plan(tmp_path, ["answered"], hooks=hooks)
    with Terminal("run", "-f", plan, cwd=tmp_path) as terminal:
        terminal.type("typed ahead" + ENTER)  # before the chat reads keys, Enter becomes Ctrl-J
        terminal.until("›")
        terminal.type("and this")
        terminal.until("and this")
        assert "answered" not in terminal.shown
        terminal.until("answered")
        terminal.prompt()
        terminal.until_lines(line_is("and this"))
        terminal.type(CTRL_C)
        assert prompts(leave(terminal)) == ["typed ahead"]
    failing = [{**hooks[0], "config": {"fails": True}}]
    plan = mock_plan(tmp_path, ["ok"], hooks=failing, name="failing.yaml")
    with Terminal("run", "-f", plan, cwd=tmp_path) as terminal:
        terminal.until("›")
        terminal.type("early" + ENTER)
        assert terminal.finish() == 3
    assert any("no luck" in line for line in terminal.lines())


def test_the_process_is_suspended_and_continued_and_follows_the_size(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, ["ok"]), cwd=tmp_path) as terminal:
        terminal.type("half")
        terminal.until_lines(line_is("half"))
        terminal.process.setwinsize(20, 40)
        terminal.type(" a thought that is longer than the forty columns of this terminal")
        terminal.until("terminal")
        terminal.process.setwinsize(30, 100)
        assert terminal.process.pid is not None
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.type(ENTER)
        terminal.until("ok")
        terminal.prompt()
        terminal.type(UP)
        terminal.until("half")
        terminal.type(CTRL_C + CTRL_D)
        assert terminal.finish() == 0


def test_a_terminal_that_vanishes_ends_the_chat(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, [LONG], mock=STREAM), cwd=tmp_path) as terminal:
        terminal.enter("hi", "word word")
        pid = terminal.process.pid
        assert pid is not None
        terminal.process.ptyproc.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue]
        terminal.process.closed = True
        deadline = time.monotonic() + 20
        while is_alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(wide, marks=pytest.mark.thorough) for wide in (80, 120))]
)
def test_the_layout_fits_the_terminal(tmp_path: Path, columns: int) -> None:
    words = "a sentence whose words are wrapped where the terminal ends, not inside of them. " * 3
    replies = [{"tool_calls": [{"name": "bash", "input": {"command": "seq 1 30"}}]}, words]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-bash"}])
    with Chat("-f", plan, cwd=tmp_path, size=(columns, 30)) as terminal:
        terminal.ask("go", "wrapped")
        for command in ("/verbose on", "/help", "/status"):
            terminal.ask(command)
        terminal.type("an input line that is longer than forty columns, for sure")
        # The status line is painted after the input line, perhaps in another read.
        lines = terminal.until_lines(shows(r"for sure$(.|\n)*mock-model.*\Z"))
    for word in ("whose", "wrapped", "Choose", "approval"):
        assert any(re.search(rf"\b{word}\b", line) for line in lines), word
    # The input line is the last but the status line, and nothing was left behind by redrawing.
    text = "\n".join(lines)
    assert text.count("an input line") == 1
    assert "for sure" in " ".join(line.strip() for line in lines[-4:])
    assert "mock-model" in lines[-1]
    assert sum(line.startswith("› go") for line in lines) == 1
    assert not any(mark in text for mark in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")


FAILING_MODES = """
class Modes:
    mode = "ask"
    modes = ("ask", "edits")

    async def set(self, mode):
        raise RuntimeError("the modes are locked")

    async def cycle(self):
        await self.set("edits")


async def mount(coordinator, config=None):
    coordinator.register_capability("approval.mode", Modes())
"""


def test_a_mode_that_cannot_be_switched_is_reported(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, FAILING_MODES, "amplifier_module_hooks_modes"))
    plan = mock_plan(tmp_path, ["ok"], hooks=[{"module": "hooks-modes", "source": source}])
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.type(SHIFT_TAB)
        terminal.until_lines(shows(r"(?m)^✗ .*the modes are locked"))
        terminal.quit()
    assert "never retrieved" not in terminal.shown


def test_shift_tab_cycles_the_modes_but_never_reaches_auto(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"], hooks=[{"module": "hooks-approval"}])
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.until_lines(shows("(?m)^ ask · "))
        for mode in ("edits", "propose", "read-only", "ask", "edits"):
            terminal.type(SHIFT_TAB)
            terminal.until_lines(shows(f"(?m)^ {mode} · "))
        terminal.type(f"/mode auto{ENTER}")
        terminal.until_lines(shows("(?m)^ auto · "))
        terminal.type(SHIFT_TAB)
        terminal.until_lines(shows("(?m)^ ask · "))
        terminal.quit()
