"""Interrupted runs: exit code, an intact session that can be resumed, an answer for every call."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_amplifier, run_python, start_amplifier, succeed
from tests.support.plans import mock_plan, module_folder
from tests.support.schemas import RESULT
from tests.support.waiting import wait_until

SLEEPER = """
import asyncio
from pathlib import Path

__amplifier_module_type__ = "tool"


class Sleeper:
    name = "sleeper"
    description = "sleeps"
    input_schema = {"type": "object", "properties": {"seconds": {"type": "number"}}}

    def __init__(self, flag):
        self.flag = flag

    async def execute(self, input):
        from amplifier_core.models import ToolResult

        Path(self.flag).touch()
        await asyncio.sleep(input["seconds"])
        return ToolResult(output="slept")


class Stuck(Sleeper):
    name = "stuck"

    async def execute(self, input):
        import time

        Path(self.flag).touch()
        await asyncio.to_thread(time.sleep, input["seconds"])


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Sleeper(config["flag"]), name="sleeper")
    await coordinator.mount("tools", Stuck(config["flag"]), name="stuck")
"""


class Running:
    """A run with a running tool."""

    def __init__(self, tmp_path: Path, seconds: float, tool: str = "sleeper") -> None:
        flag = tmp_path / "flag"
        module = {
            "module": "sleeper",
            "source": str(module_folder(tmp_path, SLEEPER, "amplifier_module_sleeper")),
            "config": {"flag": str(flag)},
        }
        call = {"name": tool, "input": {"seconds": seconds}, "id": "c1"}
        plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "never asked"], tools=[module])
        self.process = start_amplifier(
            "run", "-f", plan, "hi", "--session", "s1", "--output", "json"
        )
        wait_until(flag.exists, process=self.process)

    def end(self) -> tuple[int, dict[str, Any], str]:
        stdout, stderr = self.process.communicate(timeout=60)
        result = json.loads(stdout)
        RESULT.validate(result)
        return self.process.returncode, result, stderr.decode()


def messages() -> list[dict[str, Any]]:
    shown = succeed("session", "show", "s1", "--output", "json")
    return json.loads(shown.stdout)["messages"]


def assert_resumable(tmp_path: Path) -> None:
    """Resume the session in another directory; every call has one answer."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    plan = mock_plan(elsewhere, ["back"])
    done = run_amplifier("run", "-f", plan, "--resume", "s1", "go on", cwd=elsewhere)
    assert (done.code, done.stdout) == (0, "back\n")
    answers = [m["tool_call_id"] for m in messages() if m["role"] == "tool"]
    assert answers == ["c1"]


def test_the_first_ctrl_c_lets_the_step_finish(tmp_path: Path) -> None:
    running = Running(tmp_path, 1.0)
    running.process.send_signal(signal.SIGINT)
    code, result, stderr = running.end()
    assert (code, result["outcome"]) == (130, "interrupted")
    assert "--resume s1" in stderr
    assert "Traceback" not in stderr
    (answer,) = [m for m in messages() if m["role"] == "tool"]
    assert answer["content"] == "slept"
    assert_resumable(tmp_path)


@pytest.mark.parametrize(
    ("tool", "signals", "code", "outcome"),
    [
        ("sleeper", [signal.SIGINT, signal.SIGINT], 130, "interrupted"),
        ("sleeper", [signal.SIGTERM], 143, "terminated"),
        ("sleeper", [signal.SIGHUP], 143, "terminated"),
        # In a thread, which does not keep the process alive.
        ("stuck", [signal.SIGTERM], 143, "terminated"),
    ],
)
def test_the_second_ctrl_c_and_termination_stop_immediately(
    tmp_path: Path, tool: str, signals: list[signal.Signals], code: int, outcome: str
) -> None:
    running = Running(tmp_path, 3600, tool)
    for signum in signals:
        running.process.send_signal(signum)
        time.sleep(0.2)  # two signals sent together would arrive as one
    ended, result, stderr = running.end()
    assert (ended, result["exit_code"], result["outcome"]) == (code, code, outcome)
    assert [one["outcome"] for one in result["tools"]] == ["interrupted"]
    assert "Traceback" not in stderr
    assert_resumable(tmp_path)


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"text": "done", "delay": 1.5}])
    process = start_amplifier(
        "run",
        "-f",
        plan,
        "hi",
        "--session",
        "s1",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_for_prompt("s1")
    process.send_signal(signal.SIGHUP)
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (0, b"done\n")


def wait_for_prompt(session_id: str) -> None:
    transcript = Path(os.environ["AMPLIFIER_HOME"]) / "sessions" / session_id / "transcript.jsonl"
    wait_until(lambda: transcript.exists() and b'"user"' in transcript.read_bytes())


def test_one_interrupt_stops_a_streaming_answer_and_keeps_the_part(tmp_path: Path) -> None:
    answer = {"text": "word " * 100_000}
    plan = mock_plan(tmp_path, [answer], mock={"chunk_size": 5, "chunk_delay": 0.02})
    process = start_amplifier("run", "-f", plan, "hi", "--session", "s1", "--output", "json")
    wait_for_prompt("s1")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"--resume s1" in stderr
    assert json.loads(stdout)["response"].startswith("word word")
    plan = mock_plan(tmp_path, ["and more"])
    succeed("run", "-f", plan, "--resume", "s1", "go on")
    shown = json.loads(run_amplifier("session", "show", "s1", "--output", "json").stdout)
    roles = [(message["role"], message["content"][:9]) for message in shown["messages"]]
    assert roles[:3] == [("user", "hi"), ("assistant", "word word"), ("user", "go on")]


def test_an_interrupt_before_the_start_saves_nothing(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["x"])
    process = start_amplifier("run", "-f", plan, "-", stdin=subprocess.PIPE)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert not (Path(os.environ["AMPLIFIER_HOME"]) / "sessions").exists()


AT_THE_END = """
import atexit, os, signal, sys
from amplifier_app.cli import main

atexit.register(os.kill, os.getpid(), int(sys.argv.pop(1)))
main()
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_the_very_end_leaves_no_traceback(signum: signal.Signals) -> None:
    done = run_python(AT_THE_END, str(int(signum)), "session", "list", "--all")
    assert (done.returncode, done.stderr) == (-signum, "No saved sessions.\n"), done.stderr


SIGNALLED = """
import os, signal

__amplifier_module_type__ = "tool"


async def mount(coordinator, config=None):
    try:
        os.kill(os.getpid(), config["signal"])
    except KeyboardInterrupt as error:
        if config["converts"]:
            raise ValueError("invalid schema") from None
"""


@pytest.mark.parametrize(
    ("signum", "code", "converts"), [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, True)]
)
def test_a_signal_counts_even_if_code_that_mounts_a_module_loses_its_exception(
    tmp_path: Path, signum: int, code: int, converts: bool
) -> None:
    module = {
        "module": "signalled",
        "source": str(module_folder(tmp_path, SIGNALLED, "amplifier_module_signalled")),
        "config": {"signal": int(signum), "converts": converts},
    }
    plan = mock_plan(tmp_path, ["never asked"], tools=[module])
    file = tmp_path / "report.md"
    done = run_amplifier("run", "-f", plan, "hi", "--output", "json", "--report", f"md={file}")
    result = json.loads(done.stdout)
    RESULT.validate(result)
    assert (done.code, result["exit_code"]) == (code, code)
    assert f"exit code {code}" in file.read_text()
    assert run_amplifier("plan", "check", "-f", plan).code == code
