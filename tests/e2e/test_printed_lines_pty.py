"""A module that draws on the terminal itself, in a thread that goes on when the prompt is stopped."""

import time
from pathlib import Path

import pytest

from tests.support.plans import mock_plan, module_folder
from tests.support.screen import screen
from tests.support.terminal import CTRL_C, ENTER, Terminal

DRAWING_HOOK = """
import sys
import threading
import time

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    from amplifier_core.models import HookResult

    def draw():
        while True:
            sys.stderr.write("\\r* drawing\\033[K")
            sys.stderr.flush()
            time.sleep(0.02)

    def on_tool(event, data):
        print("\\033[32mfirst line\\033[0m\\033[2J\\nsecond line")
        threading.Thread(target=draw, daemon=True).start()
        return HookResult(action="continue")

    coordinator.hooks.register("tool:pre", on_tool)
    coordinator.hooks.register("content_block:start", lambda event, data: HookResult())
"""
ONCE_DRAWING_HOOK = """
import sys

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    from amplifier_core.models import HookResult

    def draw(event, data):
        sys.stderr.write("\\r* drawing")
        return HookResult(action="continue")

    coordinator.hooks.register("provider:request", draw)
"""
SLEEP = {"name": "bash", "input": {"command": "sleep 60"}}


def chat(folder: Path, *options: str) -> Terminal:
    hook = {
        "module": "hooks-draw",
        "source": str(module_folder(folder, DRAWING_HOOK, "amplifier_module_hooks_draw")),
    }
    plan = mock_plan(
        folder,
        [{"text": "Wait.", "tool_calls": [SLEEP]}],
        tools=[{"module": "tool-bash"}],
        hooks=[hook],
    )
    return Terminal("run", "-f", plan, *options, cwd=folder, size=(80, 24))


def stop(terminal: Terminal) -> None:
    terminal.prompt()
    terminal.enter("go", "second line")
    terminal.type(CTRL_C)
    terminal.until("press again to kill it")
    terminal.type(CTRL_C)
    terminal.until("stopped; Enter on an empty line continues")
    terminal.prompt()


def leave(terminal: Terminal) -> None:
    terminal.type("/quit" + ENTER)
    assert terminal.finish() == 0


@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["full", "plain"])
def test_lines_are_part_of_the_screen_and_drawings_are_not(
    tmp_path: Path, options: list[str]
) -> None:
    with chat(tmp_path, *options) as terminal:
        stop(terminal)
        raw = terminal.raw
        leave(terminal)
    lines = screen(raw, 80, 24)
    assert "first line" in lines
    assert lines[lines.index("first line") + 1] == "second line"
    notice = "hooks-draw also shows tool calls; see each once with --screen answer"
    assert [line.endswith(notice) for line in lines].count(True) == 1
    assert "drawing" not in raw
    assert "\x1b[2J" not in terminal.raw
    assert ("\x1b[32mfirst line" in terminal.raw) is (not options)


def test_nothing_is_drawn_over_the_input_where_modules_draw(tmp_path: Path) -> None:
    with chat(tmp_path, "--screen", "answer") as terminal:
        stop(terminal)
        assert "* drawing" in terminal.raw
        at_prompt = len(terminal.raw)
        terminal.type("half a thought")
        terminal.until("half a thought")
        time.sleep(0.2)
        terminal.type("\x15")
        raw = terminal.raw
        leave(terminal)
    assert "drawing" not in raw[at_prompt:]
    lines = screen(raw, 80, 24)
    # The last drawing is gone, except where the terminal echoed a key behind it.
    assert not any(line.startswith("* drawing") and "^C" not in line for line in lines)
    assert any(line.startswith("amplifier: warning: stopped;") for line in lines)


def test_the_answer_replaces_what_a_module_has_drawn_last(tmp_path: Path) -> None:
    draws = "amplifier_module_hooks_draws"
    source = str(module_folder(tmp_path, ONCE_DRAWING_HOOK, draws))
    hooks = [{"module": "hooks-draws", "source": source}]
    plan = mock_plan(tmp_path, ["the answer"], hooks=hooks)
    options = ("--screen", "answer", "go")
    with Terminal("run", "-f", plan, *options, cwd=tmp_path, size=(80, 24)) as terminal:
        assert terminal.finish() == 0
    assert "* drawing" in terminal.raw
    assert "the answer" in terminal.lines()


SLOW_HOOK = """
import asyncio

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    await asyncio.sleep(3.5)
"""


def test_a_module_that_is_slow_to_mount_is_named_above_the_input_line(tmp_path: Path) -> None:
    folder = module_folder(tmp_path, SLOW_HOOK, "amplifier_module_hooks_slow")
    plan = mock_plan(tmp_path, ["ok"], hooks=[{"module": "hooks-slow", "source": str(folder)}])
    with Terminal("run", "-f", plan, cwd=tmp_path, size=(80, 24)) as terminal:
        terminal.until("still mounting")
        terminal.prompt()
        # Waiting begins before the input line is painted.
        lines = terminal.until_lines(lambda lines: any(line.startswith("›") for line in lines))
    assert lines[0].startswith("· still mounting 'hooks-slow' (limit ")
    assert [line for line in lines if line.startswith("›")] == ["›"]


def test_a_module_that_blocks_the_chat_is_named_once(tmp_path: Path) -> None:
    hook = SLOW_HOOK.replace("import asyncio", "import time")
    hook = hook.replace("await asyncio.sleep(3.5)", "time.sleep(4.5)")
    folder = module_folder(tmp_path, hook, "amplifier_module_hooks_slow")
    plan = mock_plan(tmp_path, ["ok"], hooks=[{"module": "hooks-slow", "source": str(folder)}])
    with Terminal("run", "-f", plan, cwd=tmp_path, size=(80, 24)) as terminal:
        terminal.until("still mounting")
        terminal.prompt()
        terminal.ask("hi", "ok")
        assert terminal.raw.count("still mounting") == 1
