"""The CI example of the pages, run as the shell script it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import child_environment
from tests.support.llm_server import Item, ScriptedLLM, Status
from tests.support.warm_program import warm_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"


def review(severity: str = "note", file: str = "app.py", line: int = 1) -> str:
    finding = {"file": file, "line": line, "severity": severity, "message": "Look at this."}
    return json.dumps({"summary": "One finding.", "findings": [finding]})


@pytest.fixture
def branch(tmp_path: Path) -> Path:
    """A repository with a branch of one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    git("init", "-b", "main")
    (folder / "app.py").write_text("print('one')\n")
    git("add", ".")
    git("commit", "-m", "one")
    git("checkout", "-b", "topic")
    (folder / "app.py").write_text("print('two')\n")
    git("commit", "-am", "two")
    return folder


def run_script(folder: Path, address: str | None = None) -> subprocess.CompletedProcess[str]:
    home = folder.parent / "home"
    home.mkdir()
    # Away from Anthropic's own address the prices are not known.
    config = "{module: provider-anthropic, config: {list_prices: true}}"
    (home / "settings.yaml").write_text(f"providers: [{config}]\n")
    env = child_environment(home)
    programs = folder.parent / "bin"
    env["PATH"] = os.pathsep.join([str(programs), str(Path(sys.executable).parent), env["PATH"]])
    if address is not None:
        env |= {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "k"}
    # Part of the repository, as with its users: what is elsewhere below /tmp is hidden from checks.
    shutil.copytree(EXAMPLE, folder / "ci")
    command = [str(folder / "ci" / "review.sh"), "main"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 90}
    with warm_program(programs):
        return subprocess.run(command, cwd=folder, env=env, check=False, **options)


@pytest.mark.parametrize(
    ("replies", "code", "message"),
    [
        ([review("blocker")], 1, "the review found blockers"),
        ([review(file="lib.py"), review(line=2), review()], 0, "retry 2 of 2"),
        ([review(line=9)] * 3, 9, "it names lines that do not exist"),
        ([Status(401)], 4, "set the provider's key"),
    ],
    ids=["blocker", "corrected", "invented", "key"],
)
def test_the_script_reports_how_the_review_ended(
    replies: list[Item], code: int, message: str, branch: Path
) -> None:
    with ScriptedLLM.running(replies) as server:
        done = run_script(branch, server.base_url)
        (first, *_) = server.completions
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stdout == ""
    assert "+print('two')" in json.dumps(first.body["messages"])
    assert {tool["name"] for tool in first.body["tools"]} == {"read_file", "grep", "glob"}
    if code in (0, 1):
        assert json.loads((branch / "review.json").read_text())["summary"] == "One finding."
    assert (branch / "review.xml").read_text().startswith("<?xml")
    assert ("# Passed" in (branch / "review.md").read_text()) == (code in (0, 1))


def test_the_script_waits_for_a_diff_that_comes_late(branch: Path) -> None:
    programs = branch.parent / "bin"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(f'#!/bin/sh\n[ "$1" != diff ] || sleep 2.5\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    with ScriptedLLM.running([review()]) as server:
        done = run_script(branch, server.base_url)
        (first, *_) = server.completions
    assert done.returncode == 0, done.stderr
    assert "+print('two')" in json.dumps(first.body["messages"])


def test_the_script_fails_without_a_key(branch: Path) -> None:
    done = run_script(branch)
    assert done.returncode == 78
    assert "no model provider is set up" in done.stderr
    assert "set the provider's key in the CI settings" in done.stderr
