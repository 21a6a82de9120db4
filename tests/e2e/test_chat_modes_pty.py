"""The modes that a module defines, on a real pseudo-terminal."""

import json
from pathlib import Path

from tests.e2e.test_chat_pty import leave, prompts
from tests.support.cli import run_amplifier, succeed
from tests.support.module_modes import MODES_MODULE
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import ENTER, Chat, Terminal


def plan_with_modes(tmp_path: Path, modes: dict[str, str]) -> Path:
    source = tmp_path / "amplifier-module-hooks-kit"
    if not source.exists():
        module_folder(tmp_path, MODES_MODULE, "amplifier_module_hooks_kit")
    call = {"tool_calls": [{"name": "list_directory", "input": {"path": "."}}]}
    return mock_plan(
        tmp_path,
        [call, "answered"],
        mock={"on_end": "repeat"},
        tools=[{"module": "tool-filesystem"}],
        hooks=[
            {"module": "hooks-kit", "source": str(source), "config": {"modes": modes}},
            {"module": "hooks-approval"},
        ],
    )


def test_a_mode_of_a_module_is_switched_used_and_resumed(tmp_path: Path) -> None:
    plan = plan_with_modes(tmp_path, {"brainstorm": "Explore first", "plan": "Only plan"})
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("/modes", r"\* ask +reading needs", r"  brainstorm +Explore first \(kit\)")
        terminal.ask(
            "/mode nonsense",
            "there is no mode 'nonsense'.*available: ask, .*brainstorm, plan",
        )
        terminal.ask("/mode plan on", r"mode plan: Only plan \(kit\)")
        terminal.ask("/mode plan", "mode plan is off")
        terminal.ask("/plan session.context", "context-simple")
        terminal.ask("/help", r"/brainstorm \[PROMPT\] +Explore first \(kit\)")
        terminal.type("/brainstorm a cache" + ENTER)
        for shown in (
            r"mode brainstorm: Explore first \(kit\)",
            "denied.*mode brainstorm",
            "answered",
        ):
            terminal.until(shown)
        terminal.until("ask · brainstorm · mock-model")
        session_id = leave(terminal)
    assert prompts(session_id) == ["a cache"]
    done = run_amplifier("run", "--resume", session_id, "go", cwd=tmp_path)
    assert "mode brainstorm; --mode off ends it" in done.stderr
    with Terminal("run", "--resume", session_id, cwd=tmp_path) as terminal:
        terminal.until("ask · brainstorm · mock-model")
        terminal.ask("/status", "module's mode +brainstorm")
        terminal.ask("/mode off", "mode brainstorm is off")
        leave(terminal)
    assert "brainstorm" not in run_amplifier("run", "--resume", session_id, "go").stderr


def test_a_prompt_can_be_sent_in_a_mode_of_a_module(tmp_path: Path) -> None:
    plan = plan_with_modes(tmp_path, {"brainstorm": "Explore first"})
    sent = ("run", "-f", plan, "--session", "s", "--output", "json", "go")
    done = run_amplifier(*sent, "--mode", "brainstorm", cwd=tmp_path)
    assert [one["reason"] for one in json.loads(done.stdout)["denied"]] == [
        "denied: mode brainstorm"
    ]
    again = run_amplifier("run", "--resume", "s", "go", "--mode", "edits", cwd=tmp_path)
    assert "mode brainstorm; --mode off ends it" in again.stderr
    ended = run_amplifier("run", "--resume", "s", "go", "--mode", "off", cwd=tmp_path)
    assert (ended.code, "brainstorm" in ended.stderr) == (0, False)
    wrong = run_amplifier("run", "-f", plan, "go", "--mode", "aks", cwd=tmp_path)
    assert wrong.code == 2
    assert "there is no mode 'aks'" in wrong.stderr
    assert "available: ask, edits, propose, read-only, auto, brainstorm" in wrong.stderr


def test_both_modes_are_kept_with_another_model(tmp_path: Path) -> None:
    plan = plan_with_modes(tmp_path, {"brainstorm": "Explore first"})
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        # Before the first prompt nothing is saved.
        terminal.ask("/mode read-only", "mode read-only: ")
        terminal.ask("/brainstorm", "mode brainstorm: ")
        terminal.enter("/model second", "read-only · brainstorm · second")
        terminal.ask("go", "answered")
        terminal.ask("/mode edits", "mode edits: ")
        terminal.ask("/brainstorm", "mode brainstorm is off")
        terminal.enter("/model third", r"model: third \(was second\).*edits · third")
        terminal.quit()


def test_a_mode_that_no_longer_exists_is_reported(tmp_path: Path) -> None:
    plan = plan_with_modes(tmp_path, {"brainstorm": "Explore first"})
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("/brainstorm go", "answered")
        session_id = leave(terminal)
    plan = plan_with_modes(tmp_path, {})
    done = succeed("run", "--resume", session_id, "-f", plan, "go", cwd=tmp_path)
    text = "the session continues without its mode 'brainstorm': there is no mode 'brainstorm'"
    assert text in done.stderr
