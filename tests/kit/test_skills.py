"""`amplifier skill`."""

import json
from pathlib import Path

import pytest

from tests.modules.tool_skills.test_tool import add_skill
from tests.support.cli import run_amplifier, succeed
from tests.support.plugins import write_plugin


def test_skills_are_listed_and_shown(tmp_path: Path) -> None:
    add_skill(tmp_path / ".claude/skills", "notes", "Write notes.", "First, think.")
    run_amplifier("trust", "--yes", cwd=tmp_path)
    listed = json.loads(run_amplifier("skill", "list", "--output", "json", cwd=tmp_path).stdout)
    assert [(skill["name"], skill["origin"]) for skill in listed] == [("notes", "project")]
    shown = run_amplifier("skill", "show", "notes", cwd=tmp_path)
    assert "First, think." in shown.stdout
    unknown = run_amplifier("skill", "show", "note", cwd=tmp_path)
    assert unknown.code == 2
    assert "notes" in unknown.stderr


def test_skills_of_plugins_are_listed_and_shown(tmp_path: Path) -> None:
    plugin = write_plugin(tmp_path / "plugin")
    succeed("plugin", "add", plugin, "--yes", cwd=tmp_path)
    listed = json.loads(run_amplifier("skill", "list", "--output", "json", cwd=tmp_path).stdout)
    assert [(skill["name"], skill["origin"]) for skill in listed] == [("triage", "review")]
    assert "Read each issue twice." in run_amplifier("skill", "show", "triage", cwd=tmp_path).stdout


def test_a_valid_skill_passes(tmp_path: Path) -> None:
    done = run_amplifier("skill", "validate", add_skill(tmp_path, "notes"))
    assert (done.code, done.stdout) == (0, "1 skill is valid\n")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("---\nname: other\ndescription: x\n---\n", "differs from the folder's name"),
        ("---\nname: notes\n---\n", "description: it is missing"),
        ("---\nname: Notes\ndescription: x\n---\n", "lower-case"),
        ("---\nname: notes\ndescription: x\ncolour: red\n---\n", "unknown keys: colour"),
        ("---\nname: notes\ndescription: x\nmetadata: 7\n---\n", "metadata: expected a mapping"),
        ("text", "front matter"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, fault: str) -> None:
    skill = tmp_path / "notes"
    skill.mkdir()
    (skill / "SKILL.md").write_text(text)
    done = run_amplifier("skill", "validate", skill)
    assert done.code == 3
    assert fault in done.stdout
    assert done.stderr.startswith("amplifier: 1 fault in 1 skill")
