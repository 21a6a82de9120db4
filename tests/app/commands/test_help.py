"""Help pages and usage errors: readable on every width, with examples and a next step."""

import re
from functools import cache
from typing import Any

import pytest

from amplifier_app.cli import main
from amplifier_app.commands.group import amplifier_command
from amplifier_app.commands.help import walk_commands
from tests.support.cli import run_amplifier


@cache
def all_commands() -> dict[str, Any]:
    root = amplifier_command()
    context = root.make_context("amplifier", ["--version"], resilient_parsing=True)
    return dict(walk_commands(root, context))


def help_of(name: str) -> str:
    command = all_commands()[name]
    context = command.make_context(f"amplifier {name}", [], resilient_parsing=True)
    return command.get_help(context)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in all_commands():
        page = help_of(name)
        assert not re.search("[╭│─╰]", page), name
        assert not re.search(r"<\w+(\[\w+\])?>(?!/)", page), f"{name}: names of Python types"
        for line in page.splitlines():
            # Examples are not wrapped, so that they can be copied.
            is_example = line.startswith("    ") and "amplifier" in line
            is_choice = "|" in line
            assert len(line) <= columns or is_example or is_choice, (name, line)


def test_commands_with_many_options_have_examples_and_they_follow_the_summary() -> None:
    for name, command in all_commands().items():
        page = help_of(name)
        options = [one for one in command.params if one.param_type_name == "option"]
        if len(options) > 3:
            assert re.search(r"^    (\S.* \| )?amplifier ", page, re.MULTILINE), page
        paragraphs = page.split("\n\n")
        where = [number for number, text in enumerate(paragraphs) if text.startswith("    ")]
        assert where in ([], [2]), page


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["help"]])
def test_help_of_the_program_lists_its_commands(words: list[str]) -> None:
    done = run_amplifier(*words)
    assert (done.code, done.stderr) == (0, "")
    assert 'amplifier run "Which tests cover src/app.py?"' in done.stdout
    for command in ("run", "init", "session", "doctor"):
        assert re.search(rf"^  {command} +\S", done.stdout, re.MULTILINE)


def test_help_of_a_command_is_shown_by_name() -> None:
    assert run_amplifier("help", "plan", "show") == run_amplifier("plan", "show", "-h")
    assert "Other:" in run_amplifier("help", "run").stdout
    # No one asks a model how to use a command.
    assert "as a prompt" not in run_amplifier("help", "nope").stderr


@pytest.mark.parametrize("group", ["session", "module"])
def test_a_group_alone_lists_its_commands_and_is_a_usage_error(group: str) -> None:
    done = run_amplifier(group)
    assert (done.code, done.stdout) == (2, "")
    assert "Commands:" in done.stderr
    assert done.stderr.endswith(f"amplifier: 'amplifier {group}' needs one of these commands\n")


USAGE_ERRORS: list[tuple[list[str], list[str]]] = [
    (["--versoin"], ["unknown option '--versoin'", "did you mean '--version'?"]),
    (["run", "--versoin", "x"], ["unknown option '--versoin'"]),
    (["run", "--bundle", "x.md", "y"], ["unknown option '--bundle'", "run -f bundle.md"]),
    (["bundle", "add", "x"], ["unknown command 'bundle'", "run -f bundle.md", "docs plans"]),
    (["settings"], ["unknown command 'settings'", "docs plans", "module add"]),
    (["plugin", "shwo"], ["unknown command 'shwo'", "did you mean 'show'?"]),
    (["mcp", "nope"], ["unknown command 'nope'", "Available commands: add, list"]),
    (["serve", "apc"], ["unknown command 'apc'", "did you mean 'acp'?"]),
    (["compare", "rnu", "a", "b"], ["unknown command 'rnu'", "did you mean 'run'?"]),
    (["run", "-P"], ["option '-P' requires an argument"]),
    (["run", "--quiet=yes", "x"], ["option '--quiet' does not take a value"]),
    (["run", "--max-cots", "1", "x"], ["did you mean '--max-cost'?"]),
    (["hello", "there"], ["unknown command 'hello'", 'amplifier run "hello there"']),
    (["sesion", "list"], ["did you mean 'session'?", 'amplifier run "sesion list"']),
    (["session", "shwo"], ["did you mean 'show'?", "Available commands: list"]),
    (["run", "--output", "xml", "x"], ["--output: expected one of text, json, stream-json"]),
    (["run", "--max-steps", "x", "y"], ["--max-steps: expected a whole number (got 'x')"]),
    (["run", "--max-turns", "0", "y"], ["--max-steps: expected at least 1 (got '0')"]),
    (["run", "--max-cost", "x", "y"], ["--max-cost: expected a number (got 'x')"]),
    (["run", "--set", "a.b", "y"], ["--set 'a.b' is not an assignment", "path.to.key=value"]),
    (["docs", "a", "b"], ["unexpected argument 'b'", "Try 'amplifier docs --help'."]),
    (["plan", "check", "{}.yaml"], ["argument '{}.yaml'", "amplifier plan check -f '{}.yaml'"]),
    (["tool", "list", "minimal"], ["argument 'minimal'", "amplifier tool list -P minimal"]),
    (["module", "list", "other"], ["argument 'other'", "Try 'amplifier module list --help'."]),
    (["plan", "explain", __file__], ["is a file, not a key", f"PATH.TO.KEY -f {__file__}"]),
    (["run", "two", "prompts"], ["quotes"]),
    (["run", "hi", "--resume", "a", "--continue"], ["mutually exclusive"]),
    (["run", "hi", "--no-save", "--continue"], ["--no-save"]),
    (["run", "hi", "--timeout", "soon"], ["90s"]),
    (["run", "   "], ["empty"]),
]


def test_usage_errors_show_the_value_and_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in USAGE_ERRORS:
        code = main(words)
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), words
        for text in expected:
            assert text in err, words
        for leaked in ("Value error", "Input should be", "Invalid value for", "Traceback", "\n\t"):
            assert leaked not in err, words
