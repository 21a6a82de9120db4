"""`amplifier docs`: the pages that ship with the program, as real processes show them."""

import json
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.cli import run_amplifier, succeed
from tests.support.terminal import Terminal

SRC = Path(__file__).parents[3] / "src"


def topics() -> list[str]:
    lines = run_amplifier("docs").stdout.partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines[1:]]


def test_every_bundled_module_and_contract_has_a_page() -> None:
    listed = set(topics())
    modules = {
        point.name
        for point in entry_points(group="amplifier.modules")
        if point.value.startswith("amplifier_modules.")
    }
    assert modules <= listed
    contracts = {path.stem for path in (SRC / "amplifier_core" / "contracts").glob("*.md")}
    assert {f"contracts/{name}" for name in contracts - {"README"}} <= listed


def test_the_list_shows_what_each_page_is_about() -> None:
    lines = run_amplifier("docs").stdout.partition("\n\n")[0].splitlines()[1:]
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert rows["plans"] == "Plans, profiles, settings, agents"
    assert rows["tool-mcp"].startswith("Mounts the tools, resources and prompts of MCP servers")
    assert [topic for topic, about in rows.items() if about == topic] == []


def test_every_page_of_the_program_can_be_shown() -> None:
    shown = {page["topic"]: page["text"] for page in json.loads(_json("docs"))}
    written = {
        path.read_text().replace("../../../../examples", str(SRC.parent / "examples"))
        for path in (SRC / "amplifier_app").rglob("README.md")
        if "templates" not in path.parts
    }
    assert written <= set(shown.values())


def test_a_page_in_a_pipe_is_its_markdown() -> None:
    run = succeed("docs", "trust")
    assert run.stdout == (SRC / "amplifier_app" / "trust" / "README.md").read_text()


def test_examples_are_named_by_their_installed_place() -> None:
    found = re.search(
        r"\[examples/ci/review\.sh\]\((.+?)\)", run_amplifier("docs", "scripts").stdout
    )
    assert found is not None
    assert Path(found[1]).is_file()


def test_a_page_on_a_terminal_is_rendered() -> None:
    with Terminal("docs", "output", env={"PAGER": "cat"}) as terminal:
        terminal.until("a budget was reached")
        assert terminal.finish() == 0
    assert "# Output" not in terminal.shown
    assert "\nsecrets; on a terminal" in terminal.shown, "paragraphs are wrapped to the terminal"
    assert "| code |" not in terminal.shown


def test_a_search_names_topic_and_line() -> None:
    run = succeed("docs", "--search", "EXIT CODES")
    found = re.search(r"^output:(\d+): ## Exit codes$", run.stdout, re.MULTILINE)
    assert found is not None
    page = (SRC / "amplifier_app" / "render" / "README.md").read_text().splitlines()
    assert page[int(found[1]) - 1] == "## Exit codes"
    as_json = json.loads(_json("docs", "--search", "EXIT CODES"))
    assert {"topic": "output", "line": int(found[1]), "text": "## Exit codes"} in as_json


def test_a_long_page_on_a_terminal_goes_through_the_pager() -> None:
    with Terminal("docs", "output", env={"PAGER": "sed -e s/^/PAGED/"}) as terminal:
        terminal.until("PAGEDOutput and exit codes")
        assert terminal.finish() == 0


def test_an_unknown_page_suggests_a_search_that_finds_something() -> None:
    run = run_amplifier("docs", "exit-codes")
    assert run.code == 2
    assert "  Search them with: amplifier docs --search 'exit codes'\n" in run.stderr
    assert "--search" not in run_amplifier("docs", "no-such-page").stderr


def test_a_search_without_a_match_ends_with_1() -> None:
    run = run_amplifier("docs", "trust", "--search", "no page says this")
    assert (run.code, run.stdout) == (1, "")


@pytest.mark.parametrize(
    ("topic", "hint"), [("outptu", "did you mean 'output'?"), ("qqqq", "amplifier docs")]
)
def test_an_unknown_topic_is_a_usage_error_with_a_hint(topic: str, hint: str) -> None:
    run = run_amplifier("docs", topic)
    assert run.code == 2
    assert hint in run.stderr
    assert run.stdout == ""


def _json(*arguments: str) -> str:
    run = succeed(*arguments, "--output", "json")
    return run.stdout


def test_the_manual_page_has_every_command_and_option() -> None:
    page = run_amplifier("docs", "man").stdout
    assert page.startswith('.TH AMPLIFIER 1 "" "amplifier ')
    for part in (".SS amplifier run\n", ".SS amplifier batch merge\n", r"\-\-max\-cost DOLLARS"):
        assert part in page
    assert "\\fB75\\fR\nunavailable\n" in page
    # A line that begins with a dot is a request; only those of man(7) are used.
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", ".B"}
    assert "<list" not in page
