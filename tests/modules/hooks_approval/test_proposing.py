"""The mode `propose`: nothing changes before the user accepts a proposal."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier
from tests.support.terminal import CTRL_D, ENTER, Terminal

PROPOSAL = "## Greeting\n\nWrite **hello** into `made.txt`.\n"
TODOS = [{"content": "Write the file"}, {"content": "Read it"}]


def call(name: str, **values: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "input": values}]}


PROPOSE = call("propose", proposal=PROPOSAL, todos=TODOS)
WRITE = call("write_file", path="made.txt", content="hello")


def plan(folder: Path, *replies: Any, **more: Any) -> Path:
    data = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": {"replies": list(replies)}}],
        "tools": ["tool-filesystem", "tool-todo", "tool-bash"],
        "hooks": ["hooks-approval"],
        **more,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(data))
    return folder / "plan.yaml"


def run(folder: Path, *options: str) -> dict[str, Any]:
    done = run_amplifier("run", "-f", "plan.yaml", *options, "go", "--output", "json", cwd=folder)
    return json.loads(done.stdout)


@pytest.mark.parametrize("options", [(), ("--approve", "allow"), ("--approve-with", "false")])
def test_without_a_person_the_proposal_is_the_answer(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    plan(tmp_path, WRITE, PROPOSE, "I have handed it in.")
    result = run(tmp_path, "--mode", "propose", *options)
    assert (result["exit_code"], result["response"]) == (0, PROPOSAL)
    assert [call["name"] for call in result["denied"]] == ["write_file"]
    assert "before the user accepts a proposal" in result["denied"][0]["reason"]
    assert not (tmp_path / "made.txt").exists()


def test_the_tool_and_the_reminder_are_there_in_this_mode_only(tmp_path: Path) -> None:
    plan(tmp_path, PROPOSE, "done")
    for mode, answer in (("propose", PROPOSAL), ("ask", "done\n")):
        done = run_amplifier(
            *("run", "-f", "plan.yaml", "--mode", mode, "--record", f"{mode}.jsonl", "go"),
            cwd=tmp_path,
        )
        assert (done.code, done.stdout) == (0, answer)
    proposing, asking = ((tmp_path / f"{mode}.jsonl").read_text() for mode in ("propose", "ask"))
    assert "The user wants a proposal first" in proposing
    assert "Hand in your proposal" in proposing
    assert "proposal first" not in asking
    assert "Hand in your proposal" not in asking


def test_no_rule_allows_a_change_before_and_one_that_denies_holds_after(tmp_path: Path) -> None:
    rules = [{"action": "deny", "path": "secret"}, {"action": "allow", "tool": "write_file"}]
    plan(tmp_path, WRITE, call("write_file", path="secret", content="x"), "over", approvals=rules)
    result = run(tmp_path, "--mode", "propose")
    reasons = [call["reason"] for call in result["denied"]]
    assert ["mode propose" in reasons[0], "approvals rule 1" in reasons[1]] == [True, True]
    assert result["exit_code"] == 8


def test_agents_of_a_session_in_this_mode_change_nothing(tmp_path: Path) -> None:
    helper = {"module": "provider-mock", "config": {"replies": [WRITE, "done"]}}
    task = call("task", agent="helper", instruction="write")
    plan(
        tmp_path,
        task,
        PROPOSE,
        "end",
        tools=["tool-filesystem", "tool-task"],
        agents={"helper": {"description": "Helps", "providers": [helper]}},
    )
    result = run(tmp_path, "--mode", "propose")
    assert (result["exit_code"], result["response"]) == (0, PROPOSAL)
    assert not (tmp_path / "made.txt").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
class TestOnATerminal:
    """A person who answers."""

    def chat(self, folder: Path, *replies: Any, editor: str = "true") -> Terminal:
        file = plan(folder, *replies)
        env = {"VISUAL": editor}
        return Terminal("run", "-f", file, "--mode", "propose", cwd=folder, size=(100, 40), env=env)

    def ask(self, terminal: Terminal) -> None:
        terminal.prompt()
        terminal.type("go" + ENTER)
        terminal.until("Proposal.*Greeting.*Write hello into made.txt.*☐ Write the file.*n no")

    def test_it_can_be_edited_and_accepted_and_its_steps_become_the_list(
        self, tmp_path: Path
    ) -> None:
        with self.chat(tmp_path, PROPOSE, WRITE, "Carried out.", editor="sed -i s/Write/Put/") as t:
            self.ask(t)
            t.type("e")
            t.until("Put hello into made.txt")
            t.type("g")
            t.until("made.txt.*[?] more")
            t.type("y")
            t.until("Carried out.")
            t.prompt()
            t.type(CTRL_D)
            t.finish()
        assert (tmp_path / "made.txt").read_text() == "hello"
        home = Path(os.environ["AMPLIFIER_HOME"])
        transcript = next(home.rglob("transcript.jsonl")).read_text()
        assert "The user has edited it:" in transcript
        assert "Put **hello** into" in transcript
        todos = json.loads(next(home.rglob("todo.json")).read_text())
        assert [one["content"] for one in todos] == ["Write the file", "Read it"]

    def test_auto_carries_it_out_without_more_questions(self, tmp_path: Path) -> None:
        with self.chat(tmp_path, PROPOSE, WRITE, "Carried out.") as t:
            self.ask(t)
            t.type("a")
            t.until("Carried out.")
            t.until(" auto · mock-model")
        assert (tmp_path / "made.txt").read_text() == "hello"

    def test_a_comment_asks_for_another_one_and_no_ends_in_the_same_mode(
        self, tmp_path: Path
    ) -> None:
        with self.chat(tmp_path, PROPOSE, PROPOSE, WRITE, "Stopped.") as t:
            self.ask(t)
            t.type("c")
            t.until("No. Instead:")
            t.type("use goodbye" + ENTER)
            t.until("✗ 1 propose ## Greeting.*The user says: use goodbye.*Proposal.*n no")
            t.type("\x1b")
            t.until("Stopped.")
            t.until(" propose · mock-model")
        assert not (tmp_path / "made.txt").exists()
        transcript = next(Path(os.environ["AMPLIFIER_HOME"]).rglob("transcript.jsonl")).read_text()
        assert "The user says: use goodbye" in transcript
