"""Tests with recordings: recorded with --update, replayed by structure or exactly, with recorded tools."""

import json
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_kit.plan_tests.running import RecordedResults
from tests.kit.plan_tests.support import only, run_tests, write_tests
from tests.support.plans import mock_plan

CALL = {"tool_calls": [{"name": "bash", "input": {"command": "date +%N > out.txt; cat out.txt"}}]}


def recorded_test(folder: Path, **more: Any) -> Path:
    """A test whose recording was just made with the model of its plan."""
    tools = [{"module": "tool-bash"}, {"module": "tool-filesystem"}]
    hooks = [{"module": "hooks-approval"}]
    mock_plan(folder, [CALL, "Done."], tools=tools, hooks=hooks, instruction="Be brief.\nBe kind.")
    settings: dict[str, Any] = {
        "script": None,
        "recording": "rec.jsonl",
        "approve": "allow",
        "expect": {"answer": "Done.", "calls": ["bash"]},
    }
    file = write_tests(folder, **{**settings, **more})
    (one,) = run_tests(file, update=True)
    assert (one.status, one.recorded) == ("passed", True), one.failures
    assert (folder / "rec.jsonl").stat().st_size
    return file


def change(file: Path, **sections: Any) -> None:
    """Change a YAML file."""
    data = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**data, **sections}, sort_keys=False))


def test_a_changed_prompt_is_answered_as_recorded(tmp_path: Path) -> None:
    file = recorded_test(tmp_path)
    change(tmp_path / "plan.yaml", instruction="Be kind.")
    change(file, prompt="Do something else.")
    assert only(run_tests(file)) == []


def test_a_changed_prompt_is_a_failure_if_all_must_match(tmp_path: Path) -> None:
    file = recorded_test(tmp_path, tools={"bash": "recorded"})
    change(file, match="all")
    assert only(run_tests(file)) == []
    change(tmp_path / "plan.yaml", instruction="Be kind.")
    failures = only(run_tests(file))
    assert failures[0].startswith("exit: expected 0, got 9 (check_failed)")
    assert "- Be brief." in failures[0]


def test_changed_tools_are_a_failure(tmp_path: Path) -> None:
    file = recorded_test(tmp_path)
    change(tmp_path / "plan.yaml", tools=[{"module": "tool-bash"}])
    failures = only(run_tests(file))
    assert "exit: expected 0, got 9" in failures[0]
    assert "tools: read_file is no longer offered" in failures[0]


def test_recorded_tools_do_not_run_and_answer_what_they_did(tmp_path: Path) -> None:
    file = recorded_test(tmp_path, tools={"bash": "recorded"})
    # `all` includes the time that the command printed.
    change(file, match="all", expect={"answer": "Done.", "files": {}})
    assert only(run_tests(file)) == []


def test_calls_that_were_not_recorded_are_reported(tmp_path: Path) -> None:
    file = recorded_test(tmp_path, tools={"bash": "recorded"})
    lines = (tmp_path / "rec.jsonl").read_text().splitlines()
    changed = [
        line.replace("date +%N", "echo 4") if json.loads(line)["type"] != "request" else line
        for line in lines
    ]
    (tmp_path / "rec.jsonl").write_text("\n".join(changed))
    failures = only(run_tests(file))
    assert any(
        "bash was called with an input that the recording does not have" in f for f in failures
    )


def test_a_damaged_recording_has_fewer_results(tmp_path: Path) -> None:
    call = {"type": "tool_call", "id": "1", "name": "bash", "input": {}}
    messages = [
        {"role": "assistant", "content": [call, 7, None]},
        {"role": "tool", "tool_call_id": "1", "content": 1e400},
    ]
    lines = [{"request": {"messages": messages}}, {"request": {"messages": 1}}, [], {}]
    file = tmp_path / "rec.jsonl"
    file.write_text("\n".join(["{", "[" * 10_000, *map(json.dumps, lines)]))
    results = RecordedResults(file)
    assert (results.take("bash", {}), results.take("bash", {})) == ("", None)


def test_recorded_results_may_have_any_line_breaks(tmp_path: Path) -> None:
    command = r"printf 'one\342\200\250two\302\205three\014four\034five'"
    call = {"tool_calls": [{"name": "bash", "input": {"command": command}}]}
    mock_plan(tmp_path, [call, "Done."], tools=[{"module": "tool-bash"}])
    settings: dict[str, Any] = {"script": None, "recording": "rec.jsonl", "approve": "allow"}
    expected = {"answer": "Done.", "calls": ["bash"]}
    file = write_tests(tmp_path, tools={"bash": "recorded"}, expect=expected, **settings)
    assert only(run_tests(file, update=True)) == []
    result = RecordedResults(tmp_path / "rec.jsonl").take("bash", {"command": command})
    assert "two" in str(result)
    assert only(run_tests(file)) == []


def test_a_missing_recording_is_an_error_with_a_fix(tmp_path: Path) -> None:
    file = write_tests(tmp_path, script=None, recording="rec.jsonl")
    (one,) = run_tests(file)
    assert one.error is not None
    assert "rec.jsonl does not exist" in one.error.message
    command = f"amplifier test --update {shlex.quote(one.case.id)}"
    assert one.error.hint == f"Record it with: {command}"
    assert str(file) in command


def test_a_recording_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    file = recorded_test(tmp_path)
    before = (tmp_path / "rec.jsonl").read_bytes()
    mock_plan(tmp_path, [{"error": {"type": "AuthenticationError"}}])
    (one,) = run_tests(file, update=True)
    assert (one.status, one.recorded) == ("failed", False)
    assert (tmp_path / "rec.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("obstacle", ["pipe", "link", "other file", "folder"])
def test_only_a_recording_is_replaced(tmp_path: Path, obstacle: str) -> None:
    file = recorded_test(tmp_path)
    recording, other = tmp_path / "rec.jsonl", tmp_path / "other"
    other.write_bytes(recording.read_bytes() if obstacle == "link" else b"export PATH=/\n")
    recording.unlink()
    if obstacle == "pipe":
        os.mkfifo(recording)
    elif obstacle == "link":
        recording.symlink_to(other)
    elif obstacle == "folder":
        recording.mkdir()
    else:
        other.rename(recording)
    before = os.lstat(recording), recording.read_bytes() if recording.is_file() else None
    (one,) = run_tests(file, update=True)
    assert one.error is not None
    reasons = {"link": "it is a link", "other file": f"{recording} is not a recording"}
    expected = reasons.get(obstacle, "it is not a regular file")
    assert expected in one.error.message
    # Nothing was asked of the model.
    assert one.turn.steps == 0
    after = os.lstat(recording), recording.read_bytes() if recording.is_file() else None
    assert (after[0].st_ino, after[1]) == (before[0].st_ino, before[1])


def test_tests_with_the_same_recording_share_it(tmp_path: Path) -> None:
    file = recorded_test(tmp_path)
    change(file, tests=[{"name": "first"}, {"name": "second", "expect": {"steps": 2}}])
    first, second = run_tests(file, update=True)
    assert (first.status, first.recorded) == ("passed", True)
    assert (second.status, second.recorded) == ("passed", False)
    assert stat.S_IMODE((tmp_path / "rec.jsonl").stat().st_mode) == 0o600
