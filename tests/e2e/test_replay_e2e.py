"""`run --record` and `run --replay`: the same run again without a server and without a key."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Item, Reply, ScriptedLLM, Status, ToolCall
from tests.support.plans import mock_plan

KEY = "sk-ant-" + "k3y" * 12
READ_TWICE = [
    Reply(
        thinking="Two files.",
        text="I look.",
        tool_calls=[
            ToolCall("read_file", {"path": "a.txt"}),
            ToolCall("read_file", {"path": "b.txt"}),
        ],
    ),
    Reply(text="Both say hello."),
]


def plan_of(folder: Path, vendor: str, loop: str, **config: Any) -> Path:
    """A plan that needs a key to be set, and keeps its events."""
    plan = {
        "name": "test",
        "session": {"orchestrator": loop, "context": "context-simple"},
        "providers": [
            {
                "module": f"provider-{vendor}",
                "config": {
                    "api_key": f"${{{vendor.upper()}_API_KEY}}",
                    "base_url": f"${{{vendor.upper()}_BASE_URL}}",
                    "model": "claude-haiku-4-5",
                    "list_prices": True,
                    "max_retries": 0,
                    **config,
                },
            }
        ],
        "tools": [{"module": "tool-filesystem"}],
        "hooks": [{"module": "hooks-logging"}, {"module": "hooks-status"}],
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    return path


def environment(server: ScriptedLLM, vendor: str) -> dict[str, str]:
    return {f"{vendor.upper()}_BASE_URL": server.base_url, f"{vendor.upper()}_API_KEY": KEY}


def events_of(run: Finished) -> list[str]:
    """Names of the events of the run's session, in order."""
    session = json.loads(run.stdout)["session_id"]
    log = next(run.home.rglob(f"{session}/events.jsonl"))
    return [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()]


def reported(run: Finished) -> dict[str, Any]:
    """The run's JSON without what is its own."""
    result = json.loads(run.stdout)
    for tool in result["tools"]:
        del tool["duration_ms"]
    # The address of the service, a variable of the plan, is not set for the replay.
    own = ("session_id", "duration_ms", "plan_digest")
    return {name: value for name, value in result.items() if name not in own}


@pytest.mark.parametrize(
    ("vendor", "config", "loop"),
    [
        ("anthropic", {}, "loop-streaming"),
        pytest.param("anthropic", {}, "loop-basic", marks=pytest.mark.thorough),
        ("openai", {}, "loop-basic"),
        pytest.param("openai", {"api": "responses"}, "loop-streaming", marks=pytest.mark.thorough),
    ],
    ids=["anthropic", "anthropic-whole", "openai-whole", "openai-responses"],
)
def test_a_run_is_the_same_again_without_server_or_key(
    tmp_path: Path, vendor: str, config: dict[str, Any], loop: str
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").write_text("hello\n")
    plan, file = plan_of(tmp_path, vendor, loop, **config), tmp_path / "rec.jsonl"
    arguments = ["run", "--plan", plan, "--output", "json", "what do they say?"]
    with ScriptedLLM.running(READ_TWICE) as server:
        env = environment(server, vendor)
        first = run_amplifier(*arguments, "--record", file, cwd=tmp_path, env=env)
    assert first.code == 0, first.stderr
    assert json.loads(first.stdout)["response"] == "Both say hello."
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert KEY not in file.read_text(encoding="utf-8")
    again = succeed(*arguments, "--replay", file, cwd=tmp_path)
    assert reported(again) == reported(first)
    assert events_of(again) == events_of(first)
    # the plan that is saved does not record or replay again
    for done in (first, again):
        saved = next(first.home.rglob(f"{json.loads(done.stdout)['session_id']}/plan.yaml"))
        assert "provider-replay" not in saved.read_text(encoding="utf-8")
    with ScriptedLLM.running(["Yes."]) as server:
        env = environment(server, vendor)
        more = run_amplifier("run", "--continue", "sure?", cwd=tmp_path, env=env)
    assert (more.code, more.stdout) == (0, "Yes.\n"), more.stderr


@pytest.mark.parametrize(
    ("answer", "options", "code"),
    [
        (Status(529, "overloaded"), [], 75),
        (READ_TWICE[0], ["--max-cost", "0.000001"], 7),
    ],
)
def test_a_run_that_fails_or_reaches_a_limit_does_so_again(
    tmp_path: Path, answer: Item, options: list[str], code: int
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "b.txt").write_text("hello\n")
    plan, file = plan_of(tmp_path, "anthropic", "loop-streaming"), tmp_path / "rec.jsonl"
    arguments = ["run", "--plan", plan, "--output", "json", *options, "go"]
    with ScriptedLLM.running([answer]) as server:
        env = environment(server, "anthropic")
        first = run_amplifier(*arguments, "--record", file, cwd=tmp_path, env=env)
    again = run_amplifier(*arguments, "--replay", file, cwd=tmp_path)
    assert (first.code, again.code) == (code, code), again.stderr
    before, after = json.loads(first.stdout), json.loads(again.stdout)
    # The hint names the session.
    assert {**after["error"], "hint": ""} == {**before["error"], "hint": ""}
    assert after["cost"] == before["cost"]
    assert code != 7 or before["cost"] is not None
    assert events_of(again) == events_of(first)


def test_a_run_that_asks_something_else_fails_as_a_check_and_shows_the_difference(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    reply = {"text": "I look.", "tool_calls": [{"name": "read_file", "input": {"path": "a.txt"}}]}
    plan = mock_plan(tmp_path, [reply, "done"], tools=[{"module": "tool-filesystem"}])
    file = tmp_path / "rec.jsonl"
    first = run_amplifier("run", "-f", plan, "--record", file, "go", cwd=tmp_path)
    assert (first.code, first.stdout) == (0, "done\n"), first.stderr
    (tmp_path / "a.txt").write_text("changed\n")
    again = run_amplifier("run", "-f", plan, "--replay", file, "go", cwd=tmp_path)
    assert (again.code, again.stdout) == (9, "")
    assert "- hello" in again.stderr
    assert "+ changed" in again.stderr
    assert "messages[2] (tool)" in again.stderr


def test_unusable_files_are_reported_before_anything_runs(tmp_path: Path) -> None:
    plan, file = mock_plan(tmp_path, ["done"]), tmp_path / "rec.jsonl"
    file.write_text("mine\n")
    for arguments, reported in (
        (["--record", file], "not empty"),
        (["--record", tmp_path / "no" / "rec"], "does not exist"),
        (["--replay", tmp_path / "missing"], "missing does not exist"),
        (["--replay", tmp_path], "is not a file"),
        (["--record", tmp_path], "is a folder"),
        (["--replay", file], "is not a recording"),
        (["--record", file, "--replay", file], "mutually exclusive"),
    ):
        run = run_amplifier("run", "-f", plan, *arguments, "go", cwd=tmp_path)
        assert (run.code, run.stdout) == (2, ""), run.stderr
        assert reported in run.stderr
    assert file.read_text() == "mine\n"
    file.write_text('{"type": "header", "schema": 1}\nmine\n')
    run = run_amplifier("run", "-f", plan, "--replay", file, "go", cwd=tmp_path)
    assert run.code == 3
    assert "rec.jsonl:2" in run.stderr


def test_a_locked_plan_is_recorded_and_replayed_and_a_dry_run_records_nothing(
    tmp_path: Path,
) -> None:
    plan, file = mock_plan(tmp_path, ["done"]), tmp_path / "rec.jsonl"
    dry = run_amplifier("run", "-f", plan, "--record", file, "--dry-run", "go", cwd=tmp_path)
    assert (dry.code, file.exists()) == (0, False), dry.stderr
    succeed("plan", "lock", "-f", plan, cwd=tmp_path)
    for option in ("--record", "--replay"):
        run = run_amplifier("run", "-f", plan, "--locked", option, file, "go", cwd=tmp_path)
        assert (run.code, run.stdout) == (0, "done\n"), run.stderr
    dry = succeed("run", "-f", plan, "--replay", file, "--dry-run", "go", cwd=tmp_path)
