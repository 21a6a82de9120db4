"""Runs that are interrupted or killed while sub-agents are running: real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from tests.e2e.agent_scripts import KEY, LEAD, plan_of, running_agents, tasks
from tests.support.cli import run_amplifier, start_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, Stall, ToolCall
from tests.support.processes import processes_with
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

HANGING = Reply("Let me think about", fault=Stall(after=4))
SECONDS = str(1_000_000 + os.getpid())
"""How long the commands of agents sleep; unique, so that they can be found by it."""


def sleeping(command: str = f"sleep {SECONDS}") -> Reply:
    """A shell command with child processes that would outlive it."""
    background = (
        f"(setsid sleep {SECONDS} &) ; sleep {SECONDS} & mktemp ./started-XXXXXX ; {command}"
    )
    return Reply(tool_calls=[ToolCall("bash", {"command": background})])


def started(folder: Path, count: int, server: ScriptedLLM, requests: int) -> None:
    """Wait until the given numbers of commands run and requests have arrived."""
    server.wait_for_requests(requests, 60)
    wait_until(lambda: len(list(folder.glob("started-*"))) >= count)
    time.sleep(0.3)  # so that what was streamed before the stall has been read


def start(plan: Path, home: Path) -> subprocess.Popen[bytes]:
    return start_amplifier(
        "run", "-f", plan, "--approve", "allow", "--session", "s1", "--output", "json", "Go.",
        cwd=plan.parent, home=home, env=KEY,
    )  # fmt: skip


def calls_and_answers(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    calls = [
        block["id"]
        for message in messages
        if message["role"] == "assistant" and isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_call"
    ]
    answers = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    return calls, answers


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A home and, next to it, a working directory in which every layer of the sandbox lets commands create files."""
    work = tmp_path / "work"
    work.mkdir()
    return tmp_path / "home", work


def children(home: Path) -> list[str]:
    store = SessionStore(home / "sessions")
    return [one.id for one in store.summaries() if one.parent == "s1"]


def three_running() -> dict[str, list[Any]]:
    """One agent whose model stalls once, and two with commands that never end."""
    silent = iter([HANGING])
    return {
        LEAD: [tasks("thinker", "sheller", "sheller"), "I was interrupted.", "Yes."],
        # What it had said when it was stopped is kept as an answer.
        "thinker": [lambda _: next(silent, "So I thought."), "So I thought."],
        "sheller": [sleeping(), "I had been cut off."],
    }


AGENTS: dict[str, dict[str, Any]] = {"thinker": {}, "sheller": {}}


def assert_nothing_runs() -> None:
    wait_until(lambda: not processes_with(SECONDS), 20)


def assert_all_can_go_on(plan: Path, home: Path, server: ScriptedLLM) -> None:
    """Resume the run and each agent; a strict server rejects nothing."""
    store = SessionStore(home / "sessions")
    for session_id in ("s1", *children(home)):
        done = run_amplifier(
            "run", "--resume", session_id, "--approve", "allow", "What happened?",
            cwd=plan.parent, home=home, env=KEY,
        )  # fmt: skip
        assert done.code == 0, (session_id, done.stderr)
        calls, answers = calls_and_answers(store.read(session_id)[1])
        assert calls == answers, session_id
    assert server.rejections == []


def test_running_agents_are_stopped_with_the_run(tmp_path: Path) -> None:
    home, work = folders(tmp_path)
    with running_agents(three_running()) as server:
        plan = plan_of(work, server, AGENTS)
        process = start(plan, home)
        started(work, 2, server, 4)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 130, stderr
        assert b"Traceback" not in stderr
        assert_nothing_runs()
        result = json.loads(stdout)
        assert sorted(sub["agent"] for sub in result["sub_sessions"]) == [
            "sheller",
            "sheller",
            "thinker",
        ]
        assert {sub["status"] for sub in result["sub_sessions"]} == {"cancelled"}
        calls, answers = calls_and_answers(SessionStore(home / "sessions").read("s1")[1])
        assert len(calls) == 3
        assert calls == answers
        assert len(children(home)) == 3
        assert_all_can_go_on(plan, home, server)


def test_nested_agents_are_stopped_and_waiting_ones_never_start(tmp_path: Path) -> None:
    home, work = folders(tmp_path)
    lines = {
        LEAD: [tasks("boss", "boss", "boss"), "I was interrupted."],
        "boss": [tasks("sheller", "sheller"), "So was I."],
        "sheller": [sleeping(), "And I."],
    }
    with running_agents(lines) as server:
        config = {"max_depth": 2, "max_parallel": 1}
        plan = plan_of(work, server, {"boss": {}, "sheller": {}}, config=config)
        process = start(plan, home)
        started(work, 1, server, 3)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 143, stderr
        assert b"Traceback" not in stderr
        assert_nothing_runs()
        ended = [(sub["agent"], sub["status"]) for sub in json.loads(stdout)["sub_sessions"]]
        assert ended == [("boss", "cancelled"), ("sheller", "cancelled")]
        assert len(server.completions) == 3
        assert len(SessionStore(home / "sessions").summaries()) == 3
        assert_all_can_go_on(plan, home, server)


def test_the_first_ctrl_c_lets_each_agent_finish_its_step(tmp_path: Path) -> None:
    home, work = folders(tmp_path)
    slow = Reply(
        tool_calls=[ToolCall("bash", {"command": "mktemp ./started-XXXXXX; sleep 2; echo done"})]
    )
    lines = {
        LEAD: [tasks("sheller", "sheller"), "Never asked."],
        "sheller": [slow, "Never asked either."],
    }
    with running_agents(lines) as server:
        plan = plan_of(work, server, AGENTS)
        process = start(plan, home)
        started(work, 2, server, 3)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 130, stderr
        assert len(server.completions) == 3
        assert {sub["status"] for sub in json.loads(stdout)["sub_sessions"]} == {"cancelled"}
    for session_id in children(home):
        messages = SessionStore(home / "sessions").read(session_id)[1]
        calls, answers = calls_and_answers(messages)
        assert calls == answers
        assert "done" in json.dumps(messages[-1])
    result = json.dumps(SessionStore(home / "sessions").read("s1")[1][-1])
    assert "continue with session_id s1-" in result


@pytest.mark.parametrize("after", [0.0, pytest.param(0.4, marks=pytest.mark.thorough)])
def test_messages_of_agents_survive_a_killed_run(after: float, tmp_path: Path) -> None:
    home, work = folders(tmp_path)
    with running_agents(three_running()) as server:
        plan = plan_of(work, server, AGENTS)
        process = start(plan, home)
        started(work, 2, server, 4)
        time.sleep(after)
        process.kill()
        process.communicate(timeout=30)
        assert_nothing_runs()
        store = SessionStore(home / "sessions")
        assert len(children(home)) == 3
        for session_id in children(home):
            roles = [message["role"] for message in store.read(session_id)[1]]
            assert roles[:2] == ["system", "user"]
        assert_all_can_go_on(plan, home, server)
        (answers,) = [
            [m["content"] for m in store.read("s1")[1] if m["role"] == "tool"],
        ]
        interrupted = (
            "Error: the agent was interrupted before it finished; continue with session_id "
        )
        assert sorted(answers) == sorted(f"{interrupted}{one}" for one in children(home))
