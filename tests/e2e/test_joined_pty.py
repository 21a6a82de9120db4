"""Typing in a detached run: messages and approvals through its socket, from one terminal at a time."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.sessions.background import socket_address
from amplifier_app.sessions.lock import is_locked
from tests.support.batches import small_plan
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.llm_server import Reply, Request, ScriptedLLM, Stall, ToolCall
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, Terminal
from tests.support.thorough import Scale
from tests.support.waiting import wait_until

ID = "20260101-000000-abcdef"
CAN_TYPE = "a line you type is a message"


class Run:
    """A detached run whose model answers once the test lets it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.env: dict[str, str | None] = {"ANTHROPIC_API_KEY": "test-key"}
        self.replies: list[Any] = []
        self.server: ScriptedLLM

    async def answer(self, request: Request) -> Any:
        number = len(self.server.completions)
        file = self.folder / f"answer-{number}"
        # The file may come from the test's own thread.
        while not file.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return self.replies[number - 1]

    def let_go(self, *numbers: int) -> None:
        for number in numbers:
            (self.folder / f"answer-{number}").touch()

    def amplifier(self, *words: str) -> Finished:
        return run_amplifier(*words, cwd=self.folder, home=self.home, env=self.env)

    def start(self, *words: str) -> Any:
        return start_amplifier(*words, cwd=self.folder, home=self.home, env=self.env)

    def detach(self, replies: list[Any], *words: str) -> None:
        self.replies = replies
        provider = {"module": "provider-anthropic", "config": {"base_url": self.server.base_url}}
        plan = self.folder / "plan.yaml"
        plan.write_text(yaml.safe_dump({**small_plan(provider), "hooks": ["hooks-approval"]}))
        options = ("--session", ID, "-f", str(plan), *words)
        started = self.amplifier("run", "--detach", "go", *options)
        assert started.code == 0, started.stderr
        wait_until(lambda: len(self.server.completions) == 1)

    def join(self) -> Terminal:
        return Terminal("session", "join", ID, cwd=self.folder, home=self.home, env=self.env)

    @property
    def session(self) -> Path:
        return self.home / "sessions" / ID

    def wait_for_result(self) -> dict[str, Any]:
        wait_until(lambda: (self.session / "run.json").read_bytes().endswith(b"\n"))
        return json.loads((self.session / "run.json").read_text())

    def kill(self) -> None:
        """Kill the run, if there is one."""
        lock = self.session / "lock"
        if lock.exists() and is_locked(lock):
            os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
            wait_until(lambda: not is_locked(lock))

    @property
    def made(self) -> list[str]:
        file = self.folder / "made"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    place = Run(tmp_path)
    with ScriptedLLM.running([place.answer], repeat_last=True) as place.server:
        yield place
        place.kill()


def call(command: str) -> Reply:
    return Reply(tool_calls=[ToolCall("bash", {"command": command})])


def texts(run: Run, number: int) -> str:
    """The messages of a request of the run."""
    return json.dumps(run.server.completions[number - 1].body["messages"])


def test_a_line_typed_in_streamed_text_leaves_no_empty_line(run: Run) -> None:
    run.detach([Reply(text="some words of the answer, and more", fault=Stall(after=4))])
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        run.let_go(1)
        terminal.until("some words")
        terminal.enter("be brief", "queued for the next step")
        assert "be brief\r\namplifier: queued" in terminal.shown
        terminal.type(CTRL_C)


def test_a_line_is_a_message_for_the_next_step(run: Run) -> None:
    run.detach([call("echo one >> made"), "all done"], "--approve", "allow")
    file = run.session / "socket"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(run.session.stat().st_mode) == 0o700
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        terminal.enter("be brief", "queued for the next step")
        run.let_go(1, 2)
        terminal.until("all done")
        assert terminal.finish() == 0
    assert run.wait_for_result()["response"] == "all done"
    assert texts(run, 2).count("be brief") == 1
    assert run.made == ["one"]
    assert not file.exists()


def test_the_prompt_calls_and_text_are_shown_as_they_come(run: Run) -> None:
    unfinished = Reply("streamed words of an answer", chars_per_delta=9, fault=Stall(4))
    run.detach([call("echo one >> made"), unfinished], "--approve", "allow")
    with run.join() as terminal:
        terminal.until("› go")
        run.let_go(1)
        terminal.until("1 bash echo one >> made: ")
        assert "streamed" not in terminal.shown
        run.let_go(2)
        terminal.until("streamed ")
        with run.join() as later:
            later.until("streamed ")
            later.until(r"\r\namplifier: watching only")
            assert [later.shown.count(text) for text in ("go\r\n", "echo one >>")] == [1, 1]
        terminal.type(CTRL_C)
        terminal.until(r"\r\namplifier: interrupted")
    piped = run.start("session", "join", ID)
    output = b""
    while not output.endswith(b"streamed "):
        byte = piped.stdout.read(1)
        assert byte, output
        output += byte
    run.kill()
    piped.communicate()


def test_approvals_are_answered_in_the_terminal(run: Run) -> None:
    run.detach([call("echo one >> made"), call("echo two >> made"), "all done"])
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        run.let_go(1, 2, 3)
        for word, key in (("one", "y"), ("two", "n")):
            terminal.until(f"echo {word} >> made")
            terminal.until("y yes")
            terminal.type(key)
        terminal.until("all done")
        assert terminal.finish() == 8
    assert (run.wait_for_result()["exit_code"], run.made) == (8, ["one"])


@pytest.mark.parametrize("how", ["killed", "left"])
def test_a_question_waits_if_the_terminal_is_gone(run: Run, how: str) -> None:
    run.detach([call("echo one >> made"), "never"], "--approve", "park")
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        run.let_go(1)
        terminal.until("echo one >> made")
        terminal.until("y yes")
        if how == "killed":
            os.kill(terminal.process.pid, signal.SIGKILL)
        else:
            terminal.type(CTRL_C)
        result = run.wait_for_result()
    assert (result["outcome"], run.made) == ("waiting", [])
    assert run.amplifier("session", "approve", ID, "--allow").code == 0


def test_one_terminal_types_and_others_watch(run: Run) -> None:
    run.detach(["all done"])
    with run.join() as first, run.join() as second:
        watches = "watching only: another terminal types in this session"
        first.until(f"{CAN_TYPE}|{watches}")
        second.until(f"{CAN_TYPE}|{watches}")
        writer, watcher = (first, second) if CAN_TYPE in first.shown else (second, first)
        assert watches in watcher.shown
        os.kill(writer.process.pid, signal.SIGKILL)
        with run.join() as third:
            third.until(CAN_TYPE)
            third.type(CTRL_D)
            third.finish()
        with run.join() as fourth:
            fourth.until(CAN_TYPE)
            run.let_go(1)
            fourth.until("all done")
            assert fourth.finish() == 0
        watcher.until("all done")
        assert watcher.finish() == 0


def test_a_terminal_that_is_stopped_gives_way_to_the_next_one(run: Run) -> None:
    run.detach(["all done"])
    with run.join() as stopped:
        stopped.until(CAN_TYPE)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        with run.join() as terminal:
            terminal.until(CAN_TYPE)
            run.let_go(1)
            terminal.until("all done")
        os.kill(stopped.process.pid, signal.SIGCONT)
        stopped.until("the connection to session .* was lost")
        assert stopped.finish() == 6


def test_a_killed_run_ends_the_terminal_and_can_be_resumed(run: Run) -> None:
    run.detach(["all done", "all done"])
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        run.kill()
        terminal.until("was killed")
        assert terminal.finish() == 6
    assert "interrupted" in run.amplifier("session", "list").stdout
    run.let_go(1, 2)
    resumed = run.amplifier("run", "--detach", "--resume", ID, "again")
    assert resumed.code == 0, resumed.stderr
    assert run.wait_for_result()["response"] == "all done"


def test_messages_that_are_not_used_are_shown(run: Run) -> None:
    run.detach([call("echo one >> made")], "--approve", "allow", "--max-steps", "1")
    with run.join() as terminal:
        terminal.until(CAN_TYPE)
        terminal.enter("too late", "queued for the next step")
        run.let_go(1)
        terminal.until("not used by the run: too late")
        terminal.finish()
    run.wait_for_result()
    assert "not used: too late" in (run.session / "run.log").read_text()


def test_a_command_in_the_sandbox_cannot_answer_for_the_user(run: Run) -> None:
    reach = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        'open("reached", "w")'
    )
    command = f"python3 -c '{reach}' {run.session / 'socket'}"
    run.detach([call(command), "all done"], "--approve", "allow")
    run.let_go(1, 2)
    assert run.wait_for_result()["response"] == "all done"
    assert not (run.folder / "reached").exists()
    assert "Traceback" in texts(run, 2)


ODD = [b"\0\xff\n", b"[1]\n", b'{"jsonrpc":"2.0","id":1,"method":"steer","params":{}}\n', b"{"]


def test_unknown_messages_are_ignored_also_in_a_session_with_a_long_path(run: Run) -> None:
    run.home = run.folder / ("long-" * 20) / "home"
    run.detach(["all done"])
    with socket_address(run.session) as address, contextlib.ExitStack() as stack:
        for sent in ODD:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(address)
            connection.sendall(sent)
        with run.join() as terminal:
            terminal.until(CAN_TYPE)
            run.let_go(1)
            terminal.until("all done")
    assert run.wait_for_result()["outcome"] == "ok"


@pytest.mark.thorough
def test_a_terminal_that_reads_nothing_gives_way_to_the_next_one(run: Run) -> None:
    calls = [ToolCall("bash", {"command": "echo one >> made"})]
    run.detach([Reply("x" * 1_000_000, calls), "all done"], "--approve", "allow")
    with socket_address(run.session) as address, socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(address)
        for number, method in enumerate(("watch", "attach")):
            request = {"jsonrpc": "2.0", "id": number, "method": method}
            stuck.sendall(json.dumps(request).encode() + b"\n")
        run.let_go(1)
        wait_until(lambda: len(run.server.completions) == 2)
        with run.join() as terminal:
            terminal.until(CAN_TYPE)
            run.let_go(2)
            terminal.until("all done")


def test_a_terminal_that_is_killed_at_any_time_sends_no_message_twice(
    run: Run, scale: Scale
) -> None:
    draw, number = random.Random(3), scale(4, 40)
    run.detach([call("true"), "all done"], "--approve", "allow")
    acknowledged: list[int] = []
    for index in range(number):
        with run.join() as terminal:
            terminal.until(CAN_TYPE)
            terminal.type(f"message {index}." + ENTER)
            time.sleep(draw.uniform(0, 0.3))
            os.kill(terminal.process.pid, signal.SIGKILL)
            terminal.finish()
        if "queued for the next step" in terminal.shown:
            acknowledged.append(index)
    run.let_go(1, 2)
    assert run.wait_for_result()["response"] == "all done"
    arrived = [texts(run, 2).count(f"message {index}.") for index in range(number)]
    assert max(arrived) == 1
    assert [index for index in acknowledged if not arrived[index]] == []
