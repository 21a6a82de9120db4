"""Prompts that an editor cancels, and editors that are gone."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.api import load_plan, run_sync
from amplifier_app.base import paths
from amplifier_app.base.stdio import Output
from amplifier_app.sessions.verification import verify
from amplifier_serve.acp.worker import Worker
from tests.serve.acp.editor import Editor, Refused, running
from tests.support.cli import run_amplifier, start_amplifier
from tests.support.plans import BLOCKING_TOOL, held_plan, let_go, mock_plan, module_folder
from tests.support.processes import processes_in
from tests.support.waiting import wait_until

SLOW = {"chunk_size": 1, "chunk_delay": 0.002, "on_end": "cycle"}


def test_a_prompt_is_cancelled_at_any_moment_and_its_session_can_be_resumed(
    tmp_path: Path, scale: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"name": "bash", "input": {"command": "sleep 0.05; echo done"}}
    replies = [{"text": "x" * 40, "tool_calls": [call]}, "y" * 40]
    plan = mock_plan(tmp_path, replies, tools=["tool-bash"], mock=SLOW)
    other = load_plan(mock_plan(tmp_path, ["resumed"], name="other.yaml", tools=["tool-bash"]))
    moments, sessions, count = random.Random(7), paths.sessions_dir(), scale(8, 100)
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        for number in range(count):
            prompt = editor.begin_prompt(session, f"prompt {number}")
            time.sleep(moments.uniform(0, 0.35) if number else 0)
            editor.notify("session/cancel", sessionId=session)
            reasons = ("cancelled", "end_turn") if number else ("cancelled",)
            assert prompt.result(60)["stopReason"] in reasons
            if not (sessions / session).exists():
                continue  # before it had a message
            copies = tmp_path / f"copy-{number}"
            shutil.copytree(sessions, copies)
            monkeypatch.setenv("AMPLIFIER_SESSIONS", str(copies))
            assert verify(copies / session) == []
            assert run_sync(other, "go on", session_id=session).text == "resumed"
            monkeypatch.delenv("AMPLIFIER_SESSIONS")
    assert len(list(tmp_path.glob("copy-*"))) > count / 2


def test_a_running_command_ends_with_its_prompt(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch begun; sleep 300"}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "sleep")
        wait_until((tmp_path / "begun").exists)
        editor.notify("session/cancel", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"
        assert editor.prompt(session, "and now?")["stopReason"] == "end_turn"


def test_a_question_that_is_open_ends_with_its_prompt(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch made"}}
    plan = mock_plan(
        tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"], hooks=["hooks-approval"]
    )
    with running("-f", plan) as editor:
        editor.answer = lambda params: None
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "make it")
        wait_until(lambda: bool(editor.questions))
        editor.notify("session/cancel", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"
        assert editor.unrelated.get(timeout=60)["method"] == "$/cancel_request"
    assert not (tmp_path / "made").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_session_that_a_module_blocks_ends_after_the_agent_was_killed(
    tmp_path: Path, how: int
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    tool = {"module": "tool-block", "source": str(module_folder(tmp_path, BLOCKING_TOOL))}
    plan = mock_plan(tmp_path, [{"tool_calls": [{"name": "block", "input": {}}]}], tools=[tool])
    process = start_amplifier(
        *("serve", "acp", "-f", plan), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    editor = Editor(process)
    editor.begin_prompt(editor.open(work), "go")
    wait_until((work / "begun").exists)
    process.send_signal(how)
    process.wait(60)
    wait_until(lambda: not processes_in(work))
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


@pytest.mark.thorough
def test_an_editor_that_reads_nothing_does_not_keep_the_agent(tmp_path: Path) -> None:
    mock = {"chunk_size": 2000, "on_end": "repeat"}
    plan = mock_plan(tmp_path, [{"text": "x" * 800_000}], mock=mock)
    process = start_amplifier(
        *("serve", "acp", "-f", plan), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def send(method: str, **params: object) -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        stdin.write(json.dumps(message).encode() + b"\n")
        stdin.flush()

    send("session/new", cwd=str(tmp_path), mcpServers=[])
    session = json.loads(stdout.readline())["result"]["sessionId"]
    send("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "x"}])
    time.sleep(2)  # The pipe is full.
    stdin.close()
    process.wait(60)
    wait_until(lambda: not processes_in(tmp_path))
    stdout.close()


def test_a_cancelled_request_gets_the_error_for_it(tmp_path: Path) -> None:
    with running("-f", held_plan(tmp_path, ["never", "fine"])) as editor:
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "wait")
        editor.notify("$/cancel_request", requestId=editor.last_id)
        with pytest.raises(Refused) as refused:
            prompt.result(60)
        assert refused.value.code == -32800
        let_go(tmp_path)
        assert editor.prompt(session, "again")["stopReason"] == "end_turn"


class Quick(Worker):
    """Its prompts end at once."""

    async def _run(self, *_: Any) -> dict[str, Any]:
        return {"stopReason": "end_turn"}


async def test_a_prompt_may_follow_in_the_moment_that_the_last_one_ends() -> None:
    worker = Quick(-1, Output(-1))
    first = worker._prompt({})
    await asyncio.sleep(0)
    assert isinstance(first, asyncio.Task)
    assert first.done()
    assert await worker._prompt({}) == {"stopReason": "end_turn"}


def test_one_prompt_runs_at_a_time(tmp_path: Path) -> None:
    with running("-f", held_plan(tmp_path, ["never"])) as editor:
        session = editor.open(tmp_path)
        prompt = editor.begin_prompt(session, "wait")
        with pytest.raises(Refused, match="a prompt is already running"):
            editor.prompt(session, "another")
        editor.notify("session/cancel", sessionId=session)
        assert prompt.result(60)["stopReason"] == "cancelled"


def test_an_editor_that_is_gone_leaves_no_process_and_loses_nothing(tmp_path: Path) -> None:
    call = {"name": "bash", "input": {"command": "touch begun; sleep 300"}}
    replies = [{"text": "first part", "tool_calls": [call]}]
    plan = mock_plan(tmp_path, replies, tools=["tool-bash"])
    with running("-f", plan) as editor:
        session = editor.open(tmp_path)
        editor.begin_prompt(session, "sleep")
        wait_until((tmp_path / "begun").exists)
        assert processes_in(tmp_path)
        assert editor.close() == 0
        wait_until(lambda: not processes_in(tmp_path))
    shown = run_amplifier("session", "show", session)
    assert "first part" in shown.stdout
