"""The commands in the running program: on every side of a turn, and when it is killed."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Finished, run_amplifier, start_amplifier
from tests.support.plans import mock_plan
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

GUARD = """\
import json, sys
call = json.load(sys.stdin)
command = call["tool_input"]["command"]
if "forbidden" in command:
    print("that is forbidden here", file=sys.stderr)
    sys.exit(2)
if "change" in command:
    print(json.dumps({"data": {"tool_input": {"command": "touch changed"}}}))
"""


def run(tmp_path: Path, commands: list[str], specs: list[dict[str, Any]], *more: str) -> Finished:
    calls = [{"name": "bash", "input": {"command": command}} for command in commands]
    plan = mock_plan(
        tmp_path,
        [{"tool_calls": calls}, "done"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-shell", "config": {"hooks": specs}}, {"module": "hooks-logging"}],
    )
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return run_amplifier("run", "-f", plan, "go", *more, cwd=work, home=tmp_path / "home")


def events(done: Finished) -> list[dict[str, Any]]:
    (log,) = done.home.rglob("events.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def transcript(done: Finished) -> str:
    return next(done.home.rglob("transcript.jsonl")).read_text()


def test_a_guard_refuses_and_changes_calls(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "guard.py").write_text(GUARD)
    spec = {
        "event": "tool:pre",
        "tool": "bash",
        "command": [sys.executable, "guard.py"],
        "name": "guard",
    }
    done = run(tmp_path, ["touch plain", "touch forbidden", "touch change"], [spec])
    assert done.stdout == "done\n", done.stderr
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"guard.py", "plain", "changed"}
    assert "denied: that is forbidden here" in transcript(done)
    reported = [event["data"] for event in events(done) if event["event"] == "shell_hook:completed"]
    assert [each["decision"] for each in reported] == ["continue", "deny", "continue"]
    assert all(each["turn_id"] and each["tool_call_id"] for each in reported)


@pytest.mark.parametrize(("policy", "code", "made"), [("allow", 0, True), ("deny", 8, False)])
def test_a_command_can_have_the_user_asked(
    tmp_path: Path, policy: str, code: int, made: bool
) -> None:
    answer = json.dumps({"decision": "ask", "reason": "Really touch it?"})
    spec = {"event": "tool:pre", "command": f"echo '{answer}'"}
    done = run(tmp_path, ["touch made"], [spec], "--approve", policy)
    assert done.code == code, done.stderr
    assert (tmp_path / "work" / "made").exists() is made


def test_a_missing_guard_denies_calls_and_is_reported(tmp_path: Path) -> None:
    spec = {"event": "tool:pre", "command": [str(tmp_path / "no-guard")]}
    done = run(tmp_path, ["touch made"], [spec])
    assert not (tmp_path / "work" / "made").exists()
    assert "failed: could not be run" in done.stderr
    assert "must allow it, failed" in transcript(done)


def test_all_events_of_a_session_can_have_commands(tmp_path: Path) -> None:
    names = ["session:start", "prompt:submit", "tool:post", "orchestrator:complete", "session:end"]
    specs = [{"event": name, "command": f"echo {name} >> log"} for name in names]
    specs.append({"event": "prompt:submit", "command": "echo It is noon.", "output": "context"})
    done = run(tmp_path, ["true"], specs)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert (tmp_path / "work" / "log").read_text().split() == names
    assert "It is noon." in transcript(done)


def test_commands_do_not_write_on_the_terminal(tmp_path: Path) -> None:
    spec = {"event": "tool:pre", "command": "echo '{}'; echo noise >&2; echo x > /dev/tty"}
    done = run(tmp_path, ["true"], [{**spec, "on_failure": "allow"}])
    assert done.stdout == "done\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_program_ends_the_command(tmp_path: Path, number: int) -> None:
    spec = {"event": "prompt:submit", "command": "trap '' TERM; touch started; sleep 300"}
    plan = mock_plan(
        tmp_path, ["never"], hooks=[{"module": "hooks-shell", "config": {"hooks": [spec]}}]
    )
    started = tmp_path / "started"
    with start_amplifier("run", "-f", plan, "go", cwd=tmp_path) as process:
        wait_until(lambda: started.exists() and len(processes_in(tmp_path)) > 1, 30)
        process.send_signal(number)
        if number == signal.SIGINT:
            # The first one lets the step in flight end.
            time.sleep(0.3)
            process.send_signal(number)
        process.communicate(timeout=20)
    wait_until(lambda: not processes_in(tmp_path), 5)
