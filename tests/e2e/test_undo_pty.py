"""`/undo` in the chat, on a real pseudo-terminal, real files and real sub-agents."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.plans import mock_plan
from tests.support.terminal import CTRL_D, Chat

BACKED_UP = {"tools": [{"module": "tool-filesystem"}], "hooks": [{"module": "hooks-backup"}]}


def call(name: str, **values: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "input": values}]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("zero\n")
    return folder


def test_undo_reverts_turn_by_turn_even_after_resume(project: Path, tmp_path: Path) -> None:
    replies = [
        call("edit_file", path="a.txt", old_string="zero", new_string="one"),
        "first done",
        call("edit_file", path="a.txt", old_string="one", new_string="two"),
        call("write_file", path="new/b.txt", content="b"),
        "second done",
    ]
    plan = mock_plan(tmp_path, replies, **BACKED_UP)
    with Chat("-f", plan, cwd=project) as terminal:
        terminal.ask("/undo", "No file changes to undo")
        terminal.ask("do the first thing", "first done")
        terminal.ask("do the second thing", "second done")
        terminal.ask("/undo list", r"do the second thing \(.*\).*changed +a\.txt.*created +new/b")
        terminal.ask("/undo now", "expects 'list' or 'force', got 'now'")
        terminal.ask("/undo", "1 earlier prompt can be undone")
        shown = terminal.shown.rpartition("Undone: do the second thing")[2]
        assert re.search(r"restored +a\.txt\s+removed +new/b\.txt", shown)
        assert (project / "a.txt").read_text() == "one\n"
        assert [path.name for path in project.iterdir()] == ["a.txt"]
        terminal.type(CTRL_D)
        terminal.until(r"amplifier run --resume \S+\r?\n")
        assert terminal.finish() == 0
    session = re.search(r"run --resume (\S+)", terminal.shown)
    assert session
    with Chat("--resume", session[1], cwd=project) as terminal:
        terminal.ask("/undo", "Undone: do the first thing")
        assert (project / "a.txt").read_text() == "zero\n"
        terminal.ask("/undo", "No file changes to undo")


def test_files_changed_since_are_skipped_without_force(project: Path, tmp_path: Path) -> None:
    replies = [call("edit_file", path="a.txt", old_string="zero", new_string="one"), "done"]
    plan = mock_plan(tmp_path, replies, **BACKED_UP)
    with Chat("-f", plan, cwd=project) as terminal:
        terminal.ask("go", "done")
        (project / "a.txt").write_text("mine\n")
        terminal.ask("/undo", "Use /undo force to restore the skipped files")
        assert "Nothing was undone: go" in terminal.shown
        assert "skipped   a.txt: it was changed since" in terminal.shown
        assert (project / "a.txt").read_text() == "mine\n"
        terminal.ask("/undo force", r"Undone: go .*restored +a\.txt")
        assert (project / "a.txt").read_text() == "zero\n"


def test_changes_of_a_sub_agent_are_undone_with_the_turn(project: Path, tmp_path: Path) -> None:
    change = call("edit_file", path="a.txt", old_string="zero", new_string="one")
    plan = mock_plan(
        tmp_path,
        [call("task", agent="worker", instruction="change the file"), "all done"],
        tools=[{"module": "tool-filesystem"}, {"module": "tool-task"}],
        hooks=BACKED_UP["hooks"],
        agents={
            "worker": {
                "description": "changes files",
                "instruction": "Do it.",
                "providers": [
                    {"module": "provider-mock", "config": {"replies": [change, "changed"]}}
                ],
            }
        },
    )
    with Chat("-f", plan, cwd=project) as terminal:
        terminal.ask("let it be changed", "all done")
        assert (project / "a.txt").read_text() == "one\n"
        terminal.ask("/undo", r"Undone: let it be changed .*restored +a\.txt")
        assert (project / "a.txt").read_text() == "zero\n"


def test_without_the_module_undo_says_how_to_add_it(project: Path, tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"])
    with Chat("-f", plan, cwd=project) as terminal:
        terminal.ask("/undo", "amplifier module add hooks-backup")
