"""Signals to a chat, and a terminal that goes away, on a real pseudo-terminal."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_chat_pty import leave, prompts
from tests.support.plans import mock_plan, module_folder
from tests.support.processes import processes_in
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, Chat, Terminal

BLOCKING_HOOK = """
import asyncio
import select
import time
from pathlib import Path

__amplifier_module_type__ = "hook"
tasks = []


def readable():
    return bool(select.select([0], [], [], 0)[0])


async def mount(coordinator, config):
    at, folder = config["at"], Path(config["folder"])

    async def block_while_a_line_is_discarded(event, data):
        while not readable():
            time.sleep(0.01)
        # The event loop has seen the line when this goes on, and reads it afterwards.
        await asyncio.sleep(0)
        (folder / "blocked").touch()
        while readable():
            time.sleep(0.01)

    async def wait_for_a_line():
        (folder / "blocked").touch()
        while not readable():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    async def block_when_cancelled():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            (folder / "blocked").touch()
            time.sleep(60)

    if at == "request":
        coordinator.hooks.register("provider:request", block_while_a_line_is_discarded)
    elif at == "close":
        return wait_for_a_line
    else:
        # So many that one of them is cancelled before the task that draws.
        tasks.extend(asyncio.create_task(block_when_cancelled()) for _ in range(50))
        await asyncio.sleep(0)  # A task that has not begun is cancelled without running.
"""

INTERRUPTING_HOOK = """
import os
import signal
import sys

__amplifier_module_type__ = "hook"


async def mount(coordinator, config):
    def interrupt(frame, event, call):
        if event == "c_call" and call is os.write:
            if config["sequence"].encode() in frame.f_locals.get("data", b""):
                sys.setprofile(None)
                signal.raise_signal(signal.SIGTERM)

    if config["at"] == "close":
        return lambda: sys.setprofile(interrupt)
    sys.setprofile(interrupt)
"""


def blocking_plan(folder: Path, at: str) -> Path:
    source = module_folder(folder, BLOCKING_HOOK, "amplifier_module_hooks_blocking")
    config = {"at": at, "folder": str(folder)}
    hook = {"module": "hooks-blocking", "source": str(source), "config": config}
    modules = {"hooks": [hook], "tools": [{"module": "tool-bash"}]}
    call = {"tool_calls": [{"name": "bash", "input": {"command": "true"}}]}
    replies = [call, "answered"] if at == "end" else ["answered"]
    return mock_plan(folder, replies, mock={"on_end": "repeat"}, **modules)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_block(folder: Path) -> None:
    wait_until((folder / "blocked").exists)


def send(terminal: Terminal, signum: signal.Signals) -> None:
    assert terminal.process.pid is not None
    os.kill(terminal.process.pid, signum)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("screen", ["full", "plain"])
def test_a_signal_ends_the_chat_without_waiting_for_a_tool_or_an_answer(
    tmp_path: Path, screen: str, asks: bool
) -> None:
    call = {"name": "bash", "input": {"command": "touch begun; sleep 3600"}}
    modules = {"hooks": [{"module": "hooks-approval"}]} if asks else {}
    replies = [{"tool_calls": [call]}, "never"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-bash"}], **modules)
    options = ["--plain"] if screen == "plain" else []
    with Chat("-f", plan, *options, cwd=tmp_path) as terminal:
        terminal.type("go" + ENTER)
        if asks:
            terminal.until("[?] more")
        else:
            wait_until((tmp_path / "begun").exists)
        send(terminal, signal.SIGHUP if screen == "plain" else signal.SIGTERM)
        assert terminal.finish() == 143
    wait_until(lambda: not processes_in(tmp_path))
    assert "never" not in terminal.raw


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_a_signal_while_the_history_is_read_ends_the_chat_without_a_message(
    tmp_path: Path, signum: signal.Signals
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    plan = mock_plan(tmp_path, ["ok"])
    with Chat("-f", plan, cwd=project, home=home) as terminal:
        terminal.type(CTRL_D)
        terminal.finish()
    (history,) = (home / "history").iterdir()
    history.write_text("\n# now\n+go\n" * 1_000_000)
    with Terminal("run", "-f", plan, cwd=project, home=home) as terminal:
        terminal.until("›")  # The history is read next.
        send(terminal, signum)
        assert terminal.finish() == 128 + signum
    assert "Loading" not in terminal.shown


def test_ctrl_c_that_discards_a_line_does_not_block_a_plain_chat(tmp_path: Path) -> None:
    plan = blocking_plan(tmp_path, "request")
    with Chat("-f", plan, "--plain", cwd=tmp_path) as terminal:
        terminal.enter("first", "first")
        terminal.type("discarded" + ENTER)
        wait_for_block(tmp_path)
        terminal.type(CTRL_C)
        terminal.until("stopped before an answer")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["first"]


def test_what_is_typed_while_a_plain_chat_closes_is_ignored(tmp_path: Path) -> None:
    plan = blocking_plan(tmp_path, "close")
    with Chat("-f", plan, "--plain", cwd=tmp_path) as terminal:
        terminal.ask("first", "answered")
        terminal.type(CTRL_D)
        wait_for_block(tmp_path)
        terminal.type("late" + ENTER)
        assert terminal.finish() == 0
    assert "rror" not in terminal.raw


@pytest.mark.parametrize(
    ("at", "sequence"),
    [("close", "\x1b[?2004l"), ("mount", "\x1b[23;2t")],
    ids=["bracketed paste", "title"],
)
def test_a_signal_while_the_chat_leaves_the_terminal_leaves_it_as_it_was(
    tmp_path: Path, at: str, sequence: str
) -> None:
    source = module_folder(tmp_path, INTERRUPTING_HOOK, "amplifier_module_hooks_interrupting")
    config = {"at": at, "sequence": sequence}
    hook = {"module": "hooks-interrupting", "source": str(source), "config": config}
    with Chat("-f", mock_plan(tmp_path, [], hooks=[hook]), cwd=tmp_path) as terminal:
        terminal.type(CTRL_D)
        assert terminal.finish() == 143
    assert_is_as_it_was(terminal.raw)


def test_a_second_signal_leaves_the_terminal_and_the_disk_as_they_were(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    plan, env = blocking_plan(tmp_path, "end"), {"TMPDIR": str(temporary)}
    with Chat("-f", plan, cwd=tmp_path, env=env) as terminal:
        terminal.ask("go", "answered")
        assert [*temporary.iterdir()]
        send(terminal, signal.SIGTERM)
        wait_for_block(tmp_path)
        send(terminal, signal.SIGTERM)
        assert terminal.finish() == 143
    assert_is_as_it_was(terminal.raw)
    assert not [*temporary.iterdir()]


def assert_is_as_it_was(raw: str) -> None:
    """Nothing that was changed of the terminal is left."""
    for on, off in (
        ("\x1b[?2004h", "\x1b[?2004l"),  # bracketed paste
        ("\x1b[?25l", "\x1b[?25h"),  # hidden cursor
        ("\x1b[22;2t", "\x1b[23;2t"),  # title of the window
    ):
        assert raw.rfind(on) < raw.rfind(off)
