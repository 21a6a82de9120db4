"""Runs in the background: started, listed, watched, stopped, killed and resumed."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.lock import SessionLock, is_locked
from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.plans import held_plan, let_go, mock_plan, module_folder
from tests.support.waiting import wait_until

ID = "20260101-000000-abcdef"


class Background:
    """A home in which runs are started; what still runs at the end is stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"

    def amplifier(self, *words: str | Path, **more: Any) -> Finished:
        return run_amplifier(*words, home=self.home, cwd=self.folder, **more)

    def detach(self, plan: Path, *words: str) -> Finished:
        options = ("--session", ID) if "--resume" not in words else ()
        return self.amplifier("run", "--detach", *options, "-f", plan, *words)

    @property
    def session(self) -> Path:
        return self.home / "sessions" / ID

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.session / "run.json").read_text())

    def wait_for_result(self) -> dict[str, Any]:
        wait_until(lambda: (self.session / "run.json").read_bytes().endswith(b"\n"))
        return self.result

    def kill(self) -> None:
        """Kill the run, if there is one."""
        lock = self.session / "lock"
        if lock.exists() and is_locked(lock):
            os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)

    def state(self) -> str:
        listed = self.amplifier("session", "list")
        return listed.stdout if "STATE" in listed.stdout else ""


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    place = Background(tmp_path)
    yield place
    place.kill()


def test_a_run_goes_on_after_the_command_has_returned(background: Background) -> None:
    plan = held_plan(background.folder, ["the answer"])
    started = background.detach(plan, "go")
    assert (started.code, started.stdout) == (0, f"{ID}\n"), started.stderr
    assert "amplifier session join abcdef" in started.stderr
    assert "--approve park" in started.stderr
    assert "running" in background.state()
    let_go(background.folder)
    result = background.wait_for_result()
    assert (result["outcome"], result["response"]) == ("ok", "the answer")
    wait_until(lambda: background.state() == "")


def test_a_watcher_sees_the_conversation_and_gets_the_exit_code(background: Background) -> None:
    plan = held_plan(background.folder, ["one of two", "the end"], (0, 1))
    background.detach(plan, "go")
    watchers = [
        start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
        for _ in range(2)
    ]
    let_go(background.folder)
    for watcher in watchers:
        out, _ = watcher.communicate(timeout=60)
        assert watcher.returncode == 0
        assert out.decode().endswith("› go\n\none of two\n"), out
        assert b"\x1b" not in out


def test_the_prompt_of_a_run_on_a_terminal_is_shown_at_once(background: Background) -> None:
    plan = held_plan(background.folder, ["the end"])
    words = ("run", "--session", ID, "-f", str(plan), "go")
    run = start_amplifier(*words, home=background.home, cwd=background.folder)
    transcript = background.session / "transcript.jsonl"
    wait_until(lambda: transcript.exists() and b"go" in transcript.read_bytes())
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
    assert watcher.stdout is not None
    assert watcher.stdout.readline().decode() == "› go\n"
    let_go(background.folder)
    assert watcher.communicate(timeout=60)[0] == b"\nthe end\n"
    run.communicate(timeout=60)


WAITS_AT_THE_END = """
import asyncio
from pathlib import Path

from amplifier_core.models import HookResult

__amplifier_module_type__ = "hook"


async def mount(coordinator, config):
    folder = Path(config["folder"])

    async def wait(event, data):
        (folder / "at-the-end").touch()
        while not (folder / "go-on").exists():
            await asyncio.sleep(0.01)
        return HookResult()

    coordinator.hooks.register("prompt:complete", wait, name="wait")
"""


def test_a_saved_answer_is_shown_once_to_one_who_joins_before_the_run_has_ended(
    background: Background,
) -> None:
    folder = background.folder
    source = module_folder(folder, WAITS_AT_THE_END, "amplifier_module_hooks_wait")
    hook = {"module": "hooks-wait", "source": str(source), "config": {"folder": str(folder)}}
    background.detach(mock_plan(folder, ["the answer"], hooks=[hook]), "go")
    wait_until((folder / "at-the-end").exists)
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=folder)
    assert watcher.stdout is not None
    shown = [watcher.stdout.readline().decode() for _ in range(3)]
    (folder / "go-on").touch()
    assert shown == ["› go\n", "\n", "the answer\n"]
    assert watcher.communicate(timeout=60)[0] == b""


@pytest.mark.thorough
def test_a_watcher_waits_for_a_run_that_has_not_opened_its_session(background: Background) -> None:
    background.amplifier("run", "--session", ID, "-f", mock_plan(background.folder, ["one"]), "go")
    # The process that starts a run holds this lock, which the run inherits.
    lock = SessionLock(background.session / "run.json", ID)
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
    assert watcher.stdout is not None
    assert [watcher.stdout.readline() for _ in range(3)][2] == b"one\n"
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(6)
    (background.session / "run.json").write_text('{"outcome": "budget", "error": {"message": "m"}}')
    lock.release()
    assert (watcher.communicate(timeout=60)[0], watcher.returncode) == (b"", 7)


def test_a_watcher_reports_a_session_that_was_removed(background: Background) -> None:
    background.detach(held_plan(background.folder, ["late"]), "go")
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
    assert watcher.stdout is not None
    watcher.stdout.readline()
    os.kill(watcher.pid, signal.SIGSTOP)
    background.kill()
    wait_until(lambda: not is_locked(background.session / "lock"))
    assert background.amplifier("session", "delete", ID, "--yes").code == 0
    os.kill(watcher.pid, signal.SIGCONT)
    _, stderr = watcher.communicate(timeout=60)
    assert f"{ID} was removed".encode() in stderr
    assert watcher.returncode == 6


def test_a_watcher_goes_on_with_the_next_run_of_the_session(background: Background) -> None:
    background.detach(held_plan(background.folder, ["one"]), "go")
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
    assert watcher.stdout is not None
    shown = watcher.stdout.readline()
    # It sees the end of this run when the next one has begun.
    os.kill(watcher.pid, signal.SIGSTOP)
    let_go(background.folder)
    background.wait_for_result()
    plan = mock_plan(background.folder, [{"text": "two", "delay": 1}], name="next.yaml")
    resumed = background.detach(plan, "again", "--resume", ID)
    os.kill(watcher.pid, signal.SIGCONT)
    assert resumed.code == 0, resumed.stderr
    text = (shown + watcher.communicate(timeout=60)[0]).decode()
    # A prompt looks different if it was saved before the terminal joined.
    assert text.replace("›", ">").split() == [">", "go", "one", ">", "again", "two"]
    assert watcher.returncode == 0


def test_a_terminal_that_joins_late_gets_a_text_of_many_pieces(background: Background) -> None:
    text = "begin " + "x" * 21_000 + " end"
    call = {"name": "bash", "input": {"command": "touch called; sleep 60"}}
    mock = {"chunk_size": 1}
    reply = {"text": text, "tool_calls": [call]}
    plan = mock_plan(background.folder, [reply], mock=mock, tools=[{"module": "tool-bash"}])
    background.detach(plan, "go", "--approve", "allow")
    wait_until((background.folder / "called").exists)
    watcher = start_amplifier("session", "join", ID, home=background.home, cwd=background.folder)
    assert watcher.stdout is not None
    lines = [watcher.stdout.readline().decode() for _ in range(3)]
    background.kill()
    watcher.communicate(timeout=60)
    assert "".join(lines[1:]).replace("\n", "") == text


def test_a_watcher_gets_the_code_of_a_failure(background: Background) -> None:
    plan = mock_plan(
        background.folder, [{"error": {"type": "AuthenticationError", "message": "no"}}]
    )
    background.detach(plan, "go")
    joined = background.amplifier("session", "join", ID)
    assert joined.code == background.wait_for_result()["exit_code"] != 0
    assert f"ended ({joined.code})" in background.state()


def test_a_run_that_cannot_start_is_an_error_at_once(background: Background) -> None:
    failed = background.detach(background.folder / "missing.yaml", "go")
    assert (failed.code, failed.stdout) == (2, "")
    assert "the run did not start: " in failed.stderr
    assert failed.stderr.count("cannot read the plan") == 1
    assert not background.session.exists()


def test_a_session_that_cannot_be_opened_is_an_error_at_once(background: Background) -> None:
    file = background.folder / "plan.yaml"
    file.write_text(json.dumps({"extends": "mock", "tools": ["tool-nope"]}))
    failed = background.detach(file, "go")
    assert (failed.code, failed.stdout) == (3, ""), failed.stderr
    assert "the run did not start: " in failed.stderr
    assert failed.stderr.count("unknown module 'tool-nope'") == 1
    assert not background.session.exists()


def test_a_run_that_streams_events_ends_as_its_last_one_says(background: Background) -> None:
    plan = mock_plan(background.folder, ["the answer"])
    background.detach(plan, "go", "--output", "stream-json")
    joined = background.amplifier("session", "join", ID)
    assert joined.code == 0, joined.stderr
    assert "the answer" in joined.stdout
    assert background.state() == ""


def test_a_stopped_run_can_be_resumed(background: Background) -> None:
    plan = held_plan(background.folder, ["late"])
    background.detach(plan, "go")
    wait_until(lambda: (background.session / "transcript.jsonl").stat().st_size > 0)
    stopped = background.amplifier("session", "stop", ID)
    assert stopped.code == 0, stopped.stderr
    assert "amplifier run --resume abcdef" in stopped.stderr
    assert background.result["outcome"] == "interrupted"
    assert background.amplifier("session", "stop", ID).code == 6
    let_go(background.folder)
    resumed = background.detach(plan, "go on", "--resume", ID)
    assert resumed.code == 0, resumed.stderr
    assert background.wait_for_result()["response"] == "late"


def test_a_killed_run_is_shown_as_interrupted_and_can_be_resumed(background: Background) -> None:
    plan = held_plan(background.folder, ["late"])
    background.detach(plan, "go")
    wait_until(lambda: (background.session / "transcript.jsonl").stat().st_size > 0)
    assert is_locked(background.session / "run.json")
    background.kill()
    wait_until(lambda: "interrupted" in background.state())
    assert not is_locked(background.session / "run.json")
    joined = background.amplifier("session", "join", ID)
    assert (joined.code, "amplifier run --resume abcdef" in joined.stderr) == (6, True)
    let_go(background.folder)
    resumed = background.amplifier("run", "--resume", ID, "-f", plan, "go on")
    assert (resumed.code, resumed.stdout) == (0, "late\n"), resumed.stderr
    # The later run does not inherit the result of the earlier one.
    assert background.state() == ""
    joined = background.amplifier("session", "join", ID)
    assert (joined.code, joined.stderr) == (0, "")


def test_piped_input_is_part_of_the_prompt(background: Background) -> None:
    started = background.amplifier(
        *("run", "--detach", "--session", ID, "-P", "mock", "Say:"), stdin="from a pipe\n"
    )
    assert started.code == 0, started.stderr
    assert "from a pipe" in background.wait_for_result()["response"]


def test_what_cannot_be_detached_is_an_error(background: Background) -> None:
    for words, code, message in (
        (("--no-save", "hi"), 2, "--detach and --no-save are mutually exclusive"),
        (("--continue", "hi"), 2, "--detach and --continue are mutually exclusive"),
        (("--resume", "nothing", "hi"), 6, "nothing"),
    ):
        done = background.amplifier("run", "--detach", "-P", "mock", *words)
        assert (done.code, done.stdout) == (code, "")
        assert message in done.stderr


def test_an_existing_session_is_not_touched(background: Background) -> None:
    plan = mock_plan(background.folder, ["one"])
    background.amplifier("run", "--session", ID, "-f", plan, "go")
    again = background.detach(plan, "go")
    assert again.code == 6
    assert not (background.session / "run.json").exists()


def hold_places(background: Background, number: int) -> ExitStack:
    """Hold the places of so many detached runs, as if they ran in this process."""
    held = ExitStack()
    for index in range(number):
        folder = background.home / "sessions" / f"held-{index}"
        folder.mkdir(parents=True)
        lock = SessionLock(folder / "run.json", folder.name)
        held.callback(lock.release)
    return held


def test_eight_runs_are_in_the_background_at_most(background: Background) -> None:
    plan = held_plan(background.folder, ["the answer"])
    with hold_places(background, 8):
        refused = background.detach(plan, "go")
        assert (refused.code, refused.stdout) == (6, "")
        assert "8 runs are in the background already" in refused.stderr
        assert "amplifier session stop ID" in refused.stderr
        assert not background.session.exists()
    # Killed runs leave the same files, and take no place.
    assert background.detach(plan, "go").code == 0


def test_the_last_place_is_given_once(background: Background) -> None:
    plan = held_plan(background.folder, ["the answer"])
    with hold_places(background, 7):
        words = ("run", "--detach", "-f", plan, "go")
        started = [
            start_amplifier(*words, home=background.home, cwd=background.folder) for _ in range(3)
        ]
        sessions = [process.communicate(timeout=120)[0].decode().strip() for process in started]
        assert sorted(process.returncode for process in started) == [0, 6, 6]
        [session] = filter(None, sessions)
    assert background.amplifier("session", "stop", session).code == 0


@pytest.mark.parametrize(
    ("reply", "outcome", "code"),
    [("fine", "ok", 0), ({"error": {"type": "AuthenticationError"}}, "authentication", 4)],
)
def test_a_command_is_notified_of_the_end(
    background: Background, reply: Any, outcome: str, code: int
) -> None:
    plan = mock_plan(background.folder, [reply])
    told = background.folder / "told"
    notify = f"cat > {told}.part; mv {told}.part {told}; exit 3"
    started = background.detach(plan, "go", "--notify", notify, "--output", "json")
    # --output is the format of the result; the id stays plain.
    assert (started.code, started.stdout) == (0, f"{ID}\n"), started.stderr
    result = background.wait_for_result()
    sent = json.loads(told.read_text())
    assert (sent["outcome"], sent["exit_code"], sent["session_id"]) == (outcome, code, ID)
    # Its own failure changes nothing.
    assert result["exit_code"] == code
    assert "--notify: it ended with code 3" in (background.session / "run.log").read_text()


def test_a_run_that_waits_notifies(background: Background) -> None:
    call = {"tool_calls": [{"name": "bash", "input": {"command": "echo x > y"}}]}
    done = background.amplifier(
        *("run", "go", "--approve", "park", "--session", ID, "--notify", "cat > told"),
        *("-f", mock_plan(background.folder, [call], extends="default")),
    )
    assert done.code == 10, done.stderr
    sent = json.loads((background.folder / "told").read_text())
    assert (sent["outcome"], sent["waiting"][0]["tool"]) == ("waiting", "bash")
