"""Slash commands on the session's model, plan and files, on a real pseudo-terminal."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.sessions.store import SessionStore
from tests.e2e.test_chat_pty import leave, prompts
from tests.support.cli import child_environment, run_amplifier
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import CTRL_C, ENTER, UP, Chat, Terminal

OVERLOADED = {"error": {"type": "ProviderUnavailableError", "message": "M", "status_code": 529}}


def two_providers(tmp_path: Path, replies: list[Any], **more: Any) -> Path:
    plan = mock_plan(tmp_path, replies, **more)
    document = yaml.safe_load(plan.read_text())
    document["providers"] += [
        {
            "module": "provider-mock",
            "instance_id": "spare",
            "config": {"replies": ["from the spare"], "on_end": "repeat", "priority": 200},
        }
    ]
    plan.write_text(yaml.safe_dump(document))
    return plan


def test_commands_explain_and_change_the_session(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("zero\n")
    edit = {"path": "a.txt", "old_string": "zero", "new_string": "one"}
    replies = [
        {"tool_calls": [{"name": "edit_file", "input": edit}]},
        "first done",
        {"tool_calls": [{"name": "write_file", "input": {"path": "b.txt", "content": "b\n"}}]},
        "second done",
        OVERLOADED,
        "after the error",
    ]
    plan = two_providers(
        tmp_path,
        replies,
        tools=[{"module": "tool-filesystem"}],
        hooks=[{"module": "hooks-backup"}, {"module": "hooks-approval"}],
        approvals=[{"action": "allow", "tool": "*_file"}],
        agents={"reviewer": {"description": "Reviews changes"}},
    )
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("/clear now", "✗ /clear takes no argument, got 'now'")
        terminal.ask("/why", "No tool calls yet")
        terminal.ask("/diff", "No file changes")
        terminal.ask("/retry", "there is no prompt to send again")
        terminal.ask("change a", "first done")
        terminal.ask("write b", "second done")
        terminal.ask("/diff", r"b\.txt +\+1 −0", r"1 \+ b")
        terminal.ask("/diff session", r"a\.txt +\+1 −1", r"1 - zero", r"b\.txt")
        terminal.ask(
            "/why",
            r"call +write_file b\.txt",
            r"mounted by +tool-filesystem \(plan\.yaml:\d+\)",
            r"allowed by +approvals rule 1 \(plan\.yaml:\d+\)",
            r"this prompt +2 steps",
        )
        terminal.ask("/context", r"of 200k at the last model call", r"tools +\d+ +\d+ %")
        terminal.ask("/modules", r"orchestrator +loop-streaming +plan\.yaml:\d+")
        terminal.ask("/agents", r"reviewer +Reviews changes")
        terminal.ask("/plan session.context", r"context-simple +# .*plan\.yaml:\d+")
        terminal.ask(
            "/plan nothing.here", r"✗ /plan: there is no 'nothing' in the plan\s+available: "
        )
        terminal.ask(
            "third",
            r"✗ M\s+Your prompt is kept",
            r"Enter on an empty line tries again · Up edits it · /model · /provider",
        )
        terminal.type(UP)
        terminal.until("third")
        terminal.type(CTRL_C)
        terminal.ask("", "› third", "after the error")
        terminal.ask("/compact", r"Nothing to compact: .* about \d+ tokens")
        terminal.enter("/model", r"▸ \* mock-model +200k tokens.*type to filter")
        terminal.enter("nothing", "no model matches")
        terminal.type("\x1b")
        terminal.prompt()
        terminal.ask("/provider spare", r"provider: spare \(was mock\)")
        terminal.ask("and you?", "from the spare")
        terminal.ask("/model other-model", r"model: other-model")
        # What cannot be opened leaves the user where they are.
        terminal.ask("/provider openai", "✗ the plan has no provider 'openai'")
        unusable = "session: {orchestrator: gone, context: gone}\n"
        SessionStore().create("broken", project=str(tmp_path), plan_yaml=unusable).close()
        terminal.ask("/resume broken", "✗ .*gone")
        terminal.ask("still there?", "from the spare")
        session_id = leave(terminal)
    assert prompts(session_id) == ["change a", "write b", "third", "and you?", "still there?"]
    metadata = SessionStore().read(session_id)[0]
    assert (metadata["provider"], metadata["model"]) == ("spare", "other-model")


INTERRUPTED_WHEN_MOUNTED_AGAIN = """
import os, signal
from pathlib import Path

__amplifier_module_type__ = "tool"


async def mount(coordinator, config=None):
    mounted = Path(config["mounted"])
    if mounted.exists():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("invalid schema") from None
    mounted.touch()
"""


def test_an_interrupt_while_another_model_is_opened_ends_the_chat(tmp_path: Path) -> None:
    """Also if code turns it into another error, after which the chat would be in its session before."""
    module = {
        "module": "interrupted",
        "source": str(
            module_folder(tmp_path, INTERRUPTED_WHEN_MOUNTED_AGAIN, "amplifier_module_interrupted")
        ),
        "config": {"mounted": str(tmp_path / "mounted")},
    }
    plan = mock_plan(tmp_path, ["one", "two"], tools=[module])
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("first", "one")
        terminal.type("/model other" + ENTER)
        assert terminal.finish() == 130


def test_a_prompt_after_the_program_begins_a_chat(tmp_path: Path) -> None:
    folder = tmp_path / ".amplifier"
    folder.mkdir()
    plan = mock_plan(tmp_path, ["answered"], mock={"on_end": "repeat"})
    with Terminal("what is this", "-f", plan, cwd=tmp_path) as terminal:
        terminal.until("› what is this")
        terminal.until("answered")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["what is this"]
    piped = run_amplifier("what is this", "-f", plan, cwd=tmp_path)
    assert (piped.code, piped.stdout) == (0, "answered\n")


_INTERRUPTED = """
import os, signal, sys, threading, time
from amplifier_app.cli import main

def interrupt():
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
sys.argv = ["amplifier", "run", "-f", sys.argv[2], "hi"]
main()
"""


@pytest.mark.parametrize("seconds", ["0.03", "0.3"])
def test_an_early_ctrl_c_ends_with_one_line_at_most(tmp_path: Path, seconds: str) -> None:
    plan = mock_plan(tmp_path, [{"text": "never", "delay": 3600}])
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, seconds, str(plan)],
        env=child_environment(tmp_path / "home"),
        capture_output=True,
        timeout=60,
        check=False,
    )
    shown = [line for line in done.stderr.splitlines() if not line.startswith(b"  Resume with")]
    assert done.returncode == 130
    assert len(shown) <= 1, shown
