"""`display.status`: the fields of the status line, or a command that prints it."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.cli import run_amplifier
from tests.support.terminal import ENTER, Chat, Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")

STATE = "import json, sys; s = json.load(sys.stdin); print('state', s['mode'], s['context_tokens'])"


def set_status(status: object, folder: Path | None = None) -> None:
    folder = folder or Path(os.environ["AMPLIFIER_HOME"])
    folder.mkdir(exist_ok=True)
    (folder / "settings.yaml").write_text(yaml.safe_dump({"display": {"status": status}}))


def test_chosen_fields_replace_the_usual_ones(tmp_path: Path) -> None:
    set_status(["profile", "mode"])
    with Terminal("run", "-P", "mock", cwd=tmp_path) as terminal:
        terminal.until("mock · ask")


def test_a_command_prints_the_line_again_when_the_state_changes(tmp_path: Path) -> None:
    script = tmp_path / "state.py"
    script.write_text(STATE)
    set_status(
        {"command": f'echo "$({sys.executable} -IS {script}) $ANTHROPIC_API_KEY."; echo more'}
    )
    env = {"ANTHROPIC_API_KEY": "secret-key"}
    with Terminal("run", "-P", "mock", cwd=tmp_path, env=env) as terminal:
        terminal.until(r"state ask None \.")
        terminal.type("hello" + ENTER)
        terminal.until(r"\d+ \.")  # only the changed part is drawn
    assert "more" not in terminal.shown


def test_a_slow_command_blocks_nothing_and_ends_with_the_chat(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    set_status({"command": f"echo $$ > {begun}; exec sleep 60"})
    with Terminal("run", "-P", "mock", cwd=tmp_path) as terminal:
        wait_until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        terminal.ask("hello", "You said: hello")
        terminal.quit()
    wait_until(lambda: not Path(f"/proc/{begun.read_text().strip()}").exists())


def test_a_command_that_fails_is_reported_and_its_controls_are_left_out(tmp_path: Path) -> None:
    set_status({"command": "echo no >&2; exit 3"})
    with Terminal("run", "-P", "mock", cwd=tmp_path) as terminal:
        terminal.until(r"the status command failed: it exited with code 3 \(no\)")
    set_status({"command": r"printf '\\033]0;title\\007\\033[2Jfine'"})
    with Terminal("run", "-P", "mock", cwd=tmp_path) as terminal:
        terminal.until("fine")
    assert "\x1b]0;title" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw


def test_a_command_of_a_project_runs_only_after_its_review(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    project = tmp_path / "project"
    project.mkdir()
    set_status({"command": f"touch {ran}; echo of the project"}, project / ".amplifier")
    with Chat("-P", "mock", "--no-project", cwd=project) as terminal:
        terminal.ask("hello", "You said: hello")
        terminal.quit()
    assert not ran.exists()
    shown = run_amplifier("trust", "--yes", cwd=project)
    assert f"touch {ran}" in shown.stdout + shown.stderr
    with Terminal("run", "-P", "mock", cwd=project) as terminal:
        terminal.until("of the project")


def test_another_value_is_a_problem_with_its_line(tmp_path: Path) -> None:
    values: list[object] = [["mode", "colour"], {"command": ""}, {"run": "date"}, "date", {}]
    for status in values:
        set_status(status)
        run = run_amplifier("run", "-P", "mock", "hello", cwd=tmp_path)
        assert run.code == 78
        assert "settings.yaml:" in run.stderr
        assert "display.status" in run.stderr
