"""Which session `run` goes on with, and with which plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.plans import mock_plan
from tests.support.cli import Finished, run_amplifier


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return mock_plan(tmp_path, ["ok"])


def result_of(done: Finished) -> dict[str, Any]:
    return json.loads(done.stdout)


def prompts(session_id: str) -> list[str]:
    shown = run_amplifier("session", "show", session_id, "--output", "json")
    messages = json.loads(shown.stdout)["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def test_session_creates_and_then_resumes_the_same_id(plan: Path) -> None:
    for prompt in ("one", "two"):
        done = run_amplifier("run", "-f", plan, prompt, "--session", "mine", "--output", "json")
        assert (done.code, result_of(done)["session_id"]) == (0, "mine")
    assert prompts("mine") == ["one", "two"]


def test_resume_never_begins_anew(plan: Path) -> None:
    done = run_amplifier("run", "-f", plan, "hi", "--resume", "nope")
    assert (done.code, done.stdout) == (6, "")
    assert "nope" in done.stderr
    assert "session list" in done.stderr


def test_a_plan_with_a_secret_in_it_is_resumed_with_the_plan_itself_only(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["https://me:hunter2@127.0.0.1:9/v1"])
    begun = run_amplifier("run", "-f", plan, "--session", "s", "one")
    assert begun.code == 0, begun.stderr
    assert "hunter2" not in (begun.home / "sessions" / "s" / "plan.yaml").read_text()
    done = run_amplifier("run", "two", "--resume", "s")
    assert (done.code, done.stdout) == (78, "")
    assert "had a secret in it, which was not saved" in done.stderr
    again = run_amplifier("run", "two", "--resume", "s", "-f", plan, "--output", "json")
    assert again.code == 0, again.stderr
    assert prompts("s") == ["one", "two"]


def test_continue_takes_the_last_session_of_this_directory(tmp_path: Path, plan: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    assert run_amplifier("run", "--continue", "hi", cwd=here).code == 6
    run_amplifier("run", "-f", plan, "in here", "--session", "a", cwd=here)
    run_amplifier("run", "-f", plan, "over there", "--session", "b", cwd=there)
    done = run_amplifier("run", "--continue", "more", "--output", "json", cwd=here)
    assert result_of(done)["session_id"] == "a"
    assert prompts("a") == ["in here", "more"]


def test_resuming_runs_the_plan_the_session_began_with(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    replies = [{"tool_calls": [{"name": "read_file", "input": {"path": "a.txt"}}]}, "read it"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    run_amplifier("run", "-f", plan, "one", "--session", "s", cwd=tmp_path)
    plan.unlink()
    done = run_amplifier(
        "run", "two", "--resume", "s", "-m", "other-model", "--output", "stream-json", cwd=tmp_path
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.code == 0, done.stderr
    assert (events[0]["model"], "read_file" in events[0]["tools"]) == ("other-model", True)
    assert events[-1]["response"] == "read it"


def test_a_secret_that_was_not_saved_is_asked_for_instead_of_sent(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - {module: provider-mock, config: {replies: [ok]}}\n"
        "  - {module: provider-anthropic, config: {api_key: sk-in-the-plan, priority: 999}}\n"
    )
    assert run_amplifier("run", "-f", plan, "one", "--session", "s").code == 0
    done = run_amplifier("run", "two", "--resume", "s")
    assert done.code == 78
    assert "--plan" in done.stderr
    saved = list((done.home / "sessions" / "s").iterdir())
    assert not [path for path in saved if "sk-in-the-plan" in path.read_text()]
    assert run_amplifier("run", "-f", plan, "two", "--resume", "s").code == 0


def test_no_save_saves_nothing(plan: Path) -> None:
    done = run_amplifier("run", "-f", plan, "hi", "--no-save")
    assert (done.code, done.stdout) == (0, "ok\n")
    assert not (done.home / "sessions").exists()


@pytest.mark.parametrize("prompt", ["/compact", "/model other", "/help"])
def test_a_command_of_the_chat_is_not_sent_as_a_prompt(plan: Path, prompt: str) -> None:
    done = run_amplifier("run", "-f", plan, prompt)
    assert (done.code, done.stdout) == (2, "")
    assert prompt.split()[0] in done.stderr
    assert run_amplifier("run", "-f", plan, stdin=prompt + "\n").code == 2
    assert run_amplifier("run", "-f", plan, " " + prompt).code == 0
