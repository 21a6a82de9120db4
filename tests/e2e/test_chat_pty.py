"""The chat on a real pseudo-terminal."""

import os
import re
from pathlib import Path
from typing import Any

import yaml

from amplifier_app.sessions.store import SessionStore
from tests.support.cli import succeed
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    CTRL_J,
    ENTER,
    PASTE,
    UP,
    Chat,
    Terminal,
)

RESUME_LINE = r"amplifier run --resume (\S+)"


def prompts(session_id: str) -> list[str]:
    """Return the user messages of a saved session."""
    messages = SessionStore().read(session_id)[1]
    return [message["content"] for message in messages if message["role"] == "user"]


def leave(terminal: Terminal) -> str:
    """Leave with Ctrl-D; return the id in the resume line."""
    terminal.type(CTRL_D)
    terminal.until(RESUME_LINE + r"\r?\n")
    assert terminal.finish() == 0
    found = re.search(RESUME_LINE, terminal.shown)
    assert found
    return found[1]


def test_several_turns_on_one_session_then_the_resume_line_works(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["first answer", "second answer", "third answer"])
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("one", "first answer")
        terminal.ask("two", "second answer")
        session_id = leave(terminal)
    assert prompts(session_id) == ["one", "two"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Chat("--resume", session_id, cwd=elsewhere) as terminal:
        terminal.type("three" + ENTER)
        terminal.until("first answer")  # the script restarts with the process
        terminal.prompt()
        leave(terminal)
    assert prompts(session_id) == ["one", "two", "three"]


def test_no_control_character_of_the_model_reaches_the_terminal(tmp_path: Path) -> None:
    answer = "safe\x1b]0;title\x07 and\x1b[2J\x9b31m sound \u202etxt\x08\x08 `\x1b[31mcode`\n\nend"
    (tmp_path / "evil\x1b[31m.txt").write_text("x")
    call = {"name": "list_directory", "input": {"path": ".\x1b]0;owned\x07"}}
    plan = mock_plan(
        tmp_path,
        [{"thinking": "\x1b]0;title\x07hm", "tool_calls": [call]}, answer],
        mock={"chunk_size": 1},
        tools=[{"module": "tool-filesystem"}],
    )
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("hi", "end")
        leave(terminal)
    assert "title" not in terminal.shown
    assert "\x1b]" not in terminal.unmarked
    assert "\x1b[2J" not in terminal.raw
    assert not re.search("[\x00-\x06\x0b\x0c\x0e-\x1a\x80-\x9f\u202e]", terminal.unmarked)


def test_lines_are_typed_pasted_and_cleared(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ok"], mock={"on_end": "repeat"})
    with Chat("-f", plan) as terminal:
        for key in (CTRL_J, ALT_ENTER):
            terminal.ask("line one" + key + "line two", "ok")
        terminal.ask(PASTE.format("def f():\n    return 1\n"), "ok")
        terminal.ask("not this" + CTRL_C + "but this", "ok")
        sent = ["line one\nline two"] * 2
        assert prompts(leave(terminal)) == [*sent, "def f():\n    return 1\n", "but this"]


CONTRIBUTING_TOOL = """
__amplifier_module_type__ = "hook"


def forecast(city):
    if not city:
        raise ValueError("which city?")
    return f"{city}: sunny"


async def mount(coordinator, config=None):
    weather = {"name": "forecast", "summary": "Forecast for a city", "handler": forecast}
    coordinator.register_contributor("chat.commands", "hooks-weather", lambda: weather)
"""


def test_slash_commands_are_run_and_never_sent(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, CONTRIBUTING_TOOL, "amplifier_module_hooks_weather"))
    plan = mock_plan(
        tmp_path,
        ["ok"],
        tools=[{"module": "tool-filesystem"}],
        hooks=[{"module": "hooks-weather", "source": source}],
    )
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        for command, shown in (
            ("/help", r"/forecast +Forecast for a city.*Ctrl-D +Leave the chat"),
            ("/tools", "read_file"),
            ("/stauts", r"unknown command: /stauts\s+did you mean '/status'"),
            ("/think maybe", "/think expects 'on' or 'off', got 'maybe'"),
            ("/forecast", "/forecast of hooks-weather failed: which city?"),
            ("/forecast Oslo", "Oslo: sunny"),
            ("/usr/bin/env is missing", "ok"),
            ("/status", "mock-model"),
            ("/cost", "total tokens"),
        ):
            terminal.ask(command, shown)
        terminal.enter("/quit", RESUME_LINE + r"\r?\n")
        assert terminal.finish() == 0
    found = re.search(RESUME_LINE, terminal.shown)
    assert found
    assert prompts(found[1]) == ["/usr/bin/env is missing"]


def test_clear_empties_the_context_and_keeps_the_instruction(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one", "two"], instruction="be brief")
    with Chat("-f", plan, "--session", "s1") as terminal:
        terminal.ask("first", "one")
        terminal.ask("/clear", "Context cleared")
        terminal.ask("second", "two")
        leave(terminal)
    messages = SessionStore().read("s1")[1]
    assert [(m["role"], m["content"]) for m in messages[:2]] == [
        ("system", "be brief"),
        ("user", "second"),
    ]


def test_leaving_without_a_prompt_saves_nothing(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, ["ok"])) as terminal:
        terminal.quit()
    assert "--resume" not in terminal.shown
    assert not list((Path(os.environ["AMPLIFIER_HOME"]) / "sessions").iterdir())


def test_an_edited_prompt_replaces_the_one_that_failed(tmp_path: Path) -> None:
    failing = {"error": {"type": "InvalidRequestError", "message": "refused"}}
    plan = mock_plan(tmp_path, [failing, "one answer", failing, "another answer"])
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("first", "Up edits it")
        terminal.type(UP)
        terminal.until("first")
        terminal.ask(" edited", "one answer")
        terminal.ask("second", "Up edits it")
        terminal.ask("a new one", "another answer")
        session_id = leave(terminal)
    assert prompts(session_id) == ["first edited", "second", "a new one"]
    assert SessionStore().find(session_id).metadata["prompts"] == 3


def test_an_answer_that_was_cut_off_is_continued_in_the_chat(tmp_path: Path) -> None:
    cut_off = [{"text": f"part {n}", "finish_reason": "length"} for n in (1, 2)]
    with Chat("-f", mock_plan(tmp_path, [*cut_off, "the rest"]), cwd=tmp_path) as terminal:
        terminal.type("go" + ENTER)
        shown = terminal.until("Enter on an empty line continues")
        assert "Resume with" not in shown
        terminal.prompt()
        terminal.ask("", "part 2")
        terminal.ask("/retry", "the rest")
        assert prompts(leave(terminal)) == ["go", "Continue.", "Continue."]


def test_a_reached_budget_is_reported_and_can_be_raised_on_resume(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["first", "second", "third"])
    limit = ("--set", "session.budget.max_steps=2")
    with Terminal("run", "-f", plan, *limit, cwd=tmp_path) as terminal:
        for prompt, answer in (
            ("one", "first"),
            ("two", "second"),
            ("three", r"Step budget reached: used 2, limit 2\. Continue .*Deny"),
        ):
            terminal.prompt()
            terminal.enter(prompt, answer)
        terminal.type("n")
        terminal.until("step budget reached: used 2, limit 2")
        terminal.until(r"--set\s+session.budget.max_steps=N")
        terminal.prompt()
        session_id = leave(terminal)
    assert prompts(session_id) == ["one", "two"], "an unanswered prompt is not saved"
    more = ("--set", "session.budget.max_steps=3")
    succeed("run", "--resume", session_id, *more, "three", cwd=tmp_path)


def test_a_fallback_provider_is_reported(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"error": {"type": "ProviderUnavailableError", "message": "down"}}])
    document = yaml.safe_load(plan.read_text())
    spare = {"module": "provider-mock", "instance_id": "spare", "config": {"replies": ["from it"]}}
    document["providers"].append(spare)
    document["providers"][0]["config"]["priority"] = 1
    document["fallbacks"] = ["spare"]
    plan.write_text(yaml.safe_dump(document))
    with Chat("-f", plan, cwd=tmp_path) as terminal:
        terminal.ask("one", "mock is not available: down; using spare instead", "from it")
        leave(terminal)


def test_tool_calls_are_lines_and_long_results_are_folded(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"row {n}\n" for n in range(100)))
    replies = [
        {"tool_calls": [{"name": "read_file", "input": {"path": "long.txt"}}]},
        {"tool_calls": [{"name": "read_file", "input": {"path": "missing.txt"}}]},
        "done",
    ]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\ngrep -n "row 99"\nread line </dev/tty; echo "PAGED $line"\n')
    pager.chmod(0o755)
    environment = {"AMPLIFIER_PAGER": str(pager)}
    with Chat("-f", plan, cwd=tmp_path, env=environment) as terminal:
        terminal.ask(
            "read",
            r"✓ 1 read_file long\.txt · \d+ ms · 100 lines",
            "/show N shows a whole result",
            r"✗ 2 read_file missing\.txt",
            "done",
        )
        assert "row 99" not in terminal.shown
        terminal.enter("/show 1", "row 99")
        terminal.type("q\n")
        terminal.until("PAGED q")
        terminal.prompt()
        terminal.ask("/show 2", "missing.txt")
        leave(terminal)
    assert terminal.shown.count("PAGED") == 1
    *_, last = terminal.lines()
    # By the short id, which is enough.
    assert re.fullmatch("Resume with: amplifier run --resume [0-9a-f]{6}", last)


def test_a_pasted_line_is_no_command_in_plain_mode(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one", "two"])
    with Terminal("run", "-f", plan, "--plain", cwd=tmp_path) as terminal:
        terminal.until("> ")
        terminal.type("Look at this:\n!touch pasted\n\nand this\n")
        terminal.until(r"Not run yet \(Enter runs it; Ctrl-C discards it\):\s+!touch pasted")
        terminal.until("two")
        assert not (tmp_path / "pasted").exists()
        terminal.until("> ")
        terminal.type("\n")
        terminal.until("> ")
        assert (tmp_path / "pasted").exists()
        terminal.type("\x04")
        terminal.finish()


def test_pasted_commands_are_all_kept_in_plain_mode(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, []), "--plain", cwd=tmp_path) as terminal:
        terminal.type("!echo first\n!echo second\n")
        terminal.until(r"Not run yet \(.*\):\s+!echo first\s+!echo second\s+> ")
        terminal.type(CTRL_C)
        terminal.until("Ctrl-C again to leave")
        terminal.type(CTRL_D)
        terminal.finish()


def test_plain_mode_has_no_live_region_and_no_styles(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"thinking": "hm", "text": "**as written**"}])
    with Chat("-f", plan, "--plain") as terminal:
        terminal.enter("hi", re.escape("**as written**"))
        answer_ends = len(terminal.raw)
        terminal.prompt()
        leave(terminal)
    turn = terminal.raw[:answer_ends].rpartition("hm")[2]
    assert "\x1b" not in turn


ASKING_HOOK = """
__amplifier_module_type__ = "hook"


async def ask(event, data):
    return {"action": "ask_user", "approval_prompt": "Write [bold]it[/bold]?\\x1b[31m"}


async def mount(coordinator, config=None):
    coordinator.hooks.register("tool:pre", ask, name="ask")
"""


def asking(folder: Path, hook: str, *calls: dict[str, Any]) -> Path:
    """A plan whose calls a hook asks about."""
    source = str(module_folder(folder, hook, "amplifier_module_hooks_ask"))
    return mock_plan(
        folder,
        [{"tool_calls": [*calls]}, "finished"],
        tools=[{"module": "tool-filesystem"}],
        hooks=[{"module": "hooks-ask", "source": source}],
    )


def test_approval_is_requested_on_the_terminal(tmp_path: Path) -> None:
    calls = [
        {"name": "write_file", "input": {"path": name, "content": "x"}, "id": name}
        for name in ("allowed", "denied")
    ]
    with Chat("-f", asking(tmp_path, ASKING_HOOK, *calls), cwd=tmp_path) as terminal:
        terminal.type("write" + ENTER)
        for answer in ("y", "deny" + ENTER):
            terminal.until(re.escape("Write [bold]it[/bold]?"))
            terminal.until(r"\[y\] Allow  \[n\] Deny:")
            terminal.type(answer)
        terminal.until("finished")
        terminal.prompt()
        leave(terminal)
    assert (tmp_path / "allowed").exists()
    assert not (tmp_path / "denied").exists()


def test_an_answer_that_chooses_nothing_is_told_what_to_type(tmp_path: Path) -> None:
    questions = {
        "Type y or n; Esc denies.": ["Allow", "Deny"],
        "Type y, n or a number from 1 to 3; Esc denies.": ["Allow once", "Allow always", "Deny"],
        "Type a number from 1 to 2.": ["Red", "Green"],
    }
    options = '"approval_options": OPTIONS.pop(0), "action"'
    hook = f"OPTIONS = {[*questions.values()]}\n" + ASKING_HOOK.replace('"action"', options)
    calls = [{"name": "list_directory", "input": {}, "id": f"c{n}"} for n in range(3)]
    with Terminal("run", "-f", asking(tmp_path, hook, *calls), "go", cwd=tmp_path) as terminal:
        for expected in questions:
            for answer in ("", "maybe"):
                terminal.until("(?:Deny|Green)[^\n]*:")
                terminal.enter(answer, re.escape(expected))
            terminal.until("(?:Deny|Green)[^\n]*:")
            # A single key is an answer where it can be one.
            terminal.type("1" + ENTER if "Red" in questions[expected] else "n")
        terminal.finish()


def test_a_single_prompt_on_a_terminal_is_rendered_and_exits(tmp_path: Path) -> None:
    with Terminal("run", "-f", mock_plan(tmp_path, ["**four**"]), "2+2") as terminal:
        terminal.until("four")
        assert terminal.finish() == 0
    assert "**four**" not in terminal.shown
    assert terminal.raw.count("\x1b[?25l") == terminal.raw.count("\x1b[?25h")
