"""`amplifier tool`: list, describe and run the tools of a plan without a model."""

import json
from pathlib import Path

import pytest

from tests.support.cli import run_amplifier, succeed


def test_the_tools_of_the_plan_are_listed_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("extends: default\nexclude: [tool-bash]\n")
    done = succeed("tool", "list", "-f", "plan.yaml", cwd=tmp_path)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[0] == "TOOL"
    assert "read_file" in names
    assert "bash" not in names
    as_json = run_amplifier("tool", "list", "-f", "plan.yaml", "--output", "json", cwd=tmp_path)
    assert [one["name"] for one in json.loads(as_json.stdout)] == names[1:]
    assert not (done.home / "sessions").exists() or not list((done.home / "sessions").iterdir())


def test_a_tool_is_described_with_its_schema() -> None:
    done = run_amplifier("tool", "info", "grep", "--output", "json")
    tool = json.loads(done.stdout)
    assert tool["name"] == "grep"
    assert "pattern" in tool["input_schema"]["required"]
    text = run_amplifier("tool", "info", "grep").stdout
    assert text.startswith("grep\n\nSearch files")
    assert '"pattern"' in text


def test_a_tool_is_run_with_its_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    given = json.dumps({"file_path": "a.txt"})
    done = succeed("tool", "invoke", "read_file", given, cwd=tmp_path)
    assert "one" in done.stdout
    piped = run_amplifier("tool", "invoke", "read_file", "-", cwd=tmp_path, stdin=given)
    assert piped.stdout == done.stdout


def test_the_approval_rules_of_the_plan_apply(tmp_path: Path) -> None:
    call = ("tool", "invoke", "bash", '{"command": "touch made.txt; echo made"}')
    denied = run_amplifier(*call, cwd=tmp_path)
    assert (denied.code, denied.stdout) == (8, "")
    assert "approval was denied" in denied.stderr
    edit = '{"file_path": "made.txt", "content": ""}'
    refused = run_amplifier("tool", "invoke", "write_file", edit, cwd=tmp_path)
    assert f"approval was denied for write_file: {tmp_path}" in refused.stderr
    parked = run_amplifier(*call, "--approve", "park", cwd=tmp_path)
    assert (parked.code, "park" in denied.stderr, "park" in parked.stderr) == (2, False, True)
    assert not (tmp_path / "made.txt").exists()
    allowed = run_amplifier(*call, "--approve", "allow", cwd=tmp_path)
    assert (allowed.code, allowed.stdout.splitlines()[0]) == (0, "made")
    assert (tmp_path / "made.txt").exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["read_file", '{"file_path": "nope"}'], 1, "read_file failed: 'nope': no such file"),
        (["read_fil", "{}"], 2, "did you mean 'read_file'?"),
        (["read_file", "[1]"], 2, "INPUT is not a JSON object"),
        (["read_file", "{"], 2, "INPUT is not valid JSON"),
        (["read_file", "{}"], 1, "file_path"),
    ],
)
def test_faults_are_reported_with_a_hint(
    words: list[str], code: int, message: str, tmp_path: Path
) -> None:
    done = run_amplifier("tool", "invoke", *words, cwd=tmp_path)
    assert (done.code, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
