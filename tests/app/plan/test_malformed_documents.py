"""Malformed settings, agents, includes and Markdown: each has its own clear error at its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.plan import PlanError
from amplifier_app.sources.loading import load
from tests.app.plan.conftest import Write
from tests.support.cli import run_amplifier

GOOD = "session: {orchestrator: loop-basic, context: context-simple}\n"
USER = "home/settings.yaml"
PROJECT = "repo/.amplifier/settings.yaml"
LOCAL = "repo/.amplifier/settings.local.yaml"
PLAN = "plan.yaml"
MARKDOWN = "plan.md"
AGENT = "a.md"


class Case(NamedTuple):
    """Files, and for each problem: file, line, column and a part of what is said."""

    name: str
    files: dict[str, str]
    problems: list[tuple[str, int | None, int | None, str]]


def settings(name: str, text: str, *problems: tuple[int, int, str], file: str = USER) -> Case:
    return Case(f"settings: {name}", {file: text}, [(file, *problem) for problem in problems])


def agents(name: str, text: str, *problems: tuple[int, int, str]) -> Case:
    """A plan whose second line is `text`."""
    return Case(
        f"agents: {name}",
        {PLAN: GOOD + text, "agents/x.md": "---\n---\nX.\n", "agents/y.txt": "no agent"},
        [(PLAN, *problem) for problem in problems],
    )


def agent(name: str, text: str, *problems: tuple[int | None, int | None, str]) -> Case:
    """The file of an agent."""
    return Case(
        f"agent: {name}",
        {PLAN: f"{GOOD}agents: [./a.md]\n", AGENT: text},
        [(AGENT, *problem) for problem in problems],
    )


def markdown(name: str, text: str, *problems: tuple[int | None, int | None, str]) -> Case:
    return Case(f"markdown: {name}", {MARKDOWN: text}, [(MARKDOWN, *one) for one in problems])


CORPUS = [
    # -- settings
    settings("a list", "- a\n", (1, 1, "the settings file is a list, not a mapping")),
    settings("not YAML", "profile: [a\n", (2, 1, "not valid YAML")),
    settings("a key twice", "profile: mock\nprofile: b\n", (2, 1, "duplicate key 'profile': first on line 1")),
    settings("misspelt section", "tolls: []\n", (1, 1, "did you mean 'tools'?")),
    settings("misspelt profile", "profle: x\n", (1, 1, "did you mean 'profile'?")),
    settings("misspelt sources", "source: {}\n", (1, 1, "did you mean 'sources'?")),
    settings("extends", "extends: default\n", (1, 1, "choose one with 'profile: NAME'")),
    settings("name", "name: mine\n", (1, 1, "'name' is not allowed in the settings file")),
    settings("profile a table", "profile: {name: x}\n", (1, 1, "'profile' is a mapping")),
    settings("profile a number", "profile: 7\n", (1, 10, "'profile' is a number")),
    settings("profile empty", "profile: ''\n", (1, 10, "'profile' is empty")),
    settings("no such profile", "profile: moc\n", (1, 10, "did you mean 'mock'?")),
    settings("profile a path", "profile: ./x.yaml\n", (1, 10, "unknown profile './x.yaml'")),
    settings("sources a list", "sources: [a]\n", (1, 1, "a mapping 'MODULE: SOURCE'")),
    settings("source a table", "sources: {a: {b: c}}\n", (1, 11, "'sources.a' is a mapping")),
    settings("source of no id", "sources: {./a: ./b}\n", (1, 11, "'./a' is not a module id")),
    settings("bad source", "sources: {a: 'http://x/y'}\n", (1, 14, "'http://x/y'")),
    settings("unset in source", "sources: {a: '${NO}'}\n", (1, 14, "NO is not set")),
    settings("tools a mapping", "tools: {a: 1}\n", (1, 1, "'tools' is a mapping")),
    settings("no module", "tools: [{config: {}}]\n", (1, 9, "tools[0] has no 'module'")),
    settings("in the project", "hoks: []\n", (1, 1, "did you mean 'hooks'?"), file=PROJECT),
    settings("local", "session: 3\n", (1, 10, "'session' is a number"), file=LOCAL),
    settings("not UTF-8", "profile: \udcff\n", (1, None, "is not UTF-8 text")),  # type: ignore[arg-type]
    Case(
        "settings: several files",
        {USER: "a: 1\n", PROJECT: "b: 1\n", LOCAL: "c: 1\n"},
        [(USER, 1, 1, "'a'"), (PROJECT, 1, 1, "'b'"), (LOCAL, 1, 1, "'c'")],
    ),
    Case("plan: settings' keys", {PLAN: GOOD + "profile: x\nsources: {}\n"}, [
        (PLAN, 2, 1, "set it in settings"), (PLAN, 3, 1, "set it in settings"),
    ]),
    # -- agents in a plan
    agents("a text", "agents: mine\n", (2, 9, "'agents' is a string")),
    agents("a number", "agents: 5\n", (2, 9, "'agents' is a number")),
    agents("a number in the list", "agents: [5]\n", (2, 10, "not an agent")),
    agents("no such file", "agents: [./gone.md]\n", (2, 10, "'./gone.md' does not exist")),
    agents("no match", "agents: [agents/*.yaml]\n", (2, 10, "matches 'agents/*.yaml'")),
    agents("a pattern of folders", "agents: [./*/x.md]\n", (2, 10, "only the last part of the path")),
    agents("no agent's file", "agents: [agents/y.txt]\n", (2, 10, "is not a .md or .yaml file")),
    agents("a folder", "agents: [./agents]\n", (2, 10, "is not a .md or .yaml file")),
    agents("no such name", "agents: [x]\n", (2, 10, "unknown agent 'x'")),
    agents("twice", "agents: [agents/x.md, agents/*.md]\n", (2, 23, "duplicate agent 'x'")),
    agents("no name", "agents: [{description: d}]\n", (2, 10, "the agent has no name")),
    agents("bad name", "agents: {'a b': {}}\n", (2, 10, "'a b' is not an agent name")),
    agents("misspelt key", "agents: {a: {descripton: d}}\n", (2, 14, "did you mean 'description'")),
    agents("misspelt entry", "agents: {a: {tools: [{modul: t}]}}\n", (2, 23, "'module'")),
    agents("agents inside", "agents: {a: {agents: []}}\n", (2, 14, "agents cannot have agents of their own")),
    agents("extends inside", "agents: {a: {extends: b}}\n", (2, 14, "unknown key 'extends'")),
    agents("an agent a list", "agents: {a: []}\n", (2, 10, "'agents.a' is a list")),
    agents("include a number", "agents: {include: [5]}\n", (2, 20, "expected a string")),
    agents("no such folder", "agents: {dirs: [./no]}\n", (2, 17, "the folder './no' does not exist")),
    agents("misspelt form", "agents: {dirs: ./agents, inclde: [a]}\n", (2, 26, "'include'")),
    agents("inline a list", "agents: {dirs: ./agents, inline: [a]}\n", (2, 26, "not a mapping")),
    agents("exclude", "agents: {a: {exclude: [5]}}\n", (2, 24, "'exclude' is a number")),
    agents("bad source", "agents: {a: {tools: [{module: t, source: x/y}]}}\n", (2, 42, "'./x/y'")),
    agents("unset", "agents: {a: {description: '${NO}'}}\n", (2, 27, "NO is not set")),
    # -- files of agents
    agent("not closed", "---\ndescription: d\n", (1, 1, "the front matter is not closed")),
    agent("no front matter", "You are.\n", (1, 1, "the file has no front matter")),
    agent("empty", "", (1, 1, "the file has no front matter")),
    agent("a list", "---\n- a\n---\n", (2, 1, "the front matter is not a mapping")),
    agent("not YAML", "---\nname: [a\n---\n", (3, 1, "not valid YAML")),
    agent("misspelt", "---\nname: a\ntolls: []\n---\n", (3, 1, "did you mean 'tools'?")),
    agent("tools a text", "---\ntools: Read, Grep\n---\n", (2, 8, "'tools' is a string")),
    agent("instruction twice", "---\ninstruction: a\n---\nb\n", (2, 1, "is set twice")),
    agent("name twice", "---\nname: a\nmeta: {name: b}\n---\n", (3, 8, "first on line 2")),
    agent("table a text", "---\nmeta: a\n---\n", (2, 1, "'meta' is not a mapping")),
    agent("not text", "---\n---\n\udcff", (3, None, "byte 0xff is not UTF-8 text")),
    Case(
        "agent: empty YAML",
        {PLAN: f"{GOOD}agents: [./a.yaml]\n", "a.yaml": "# nothing\n"},
        [("a.yaml", 1, 1, "the agent is empty")],
    ),
    # -- Markdown
    markdown("no front matter", "# Profile\n", (1, 1, "begin the file with '---'")),
    markdown("not closed", f"---\n{GOOD}# Profile\n", (1, 1, "end it with a line '---'")),
    markdown("empty front matter", "---\n---\nHi\n", (1, 1, "no orchestrator"), (1, 1, "no context")),
    markdown("misspelt", f"---\n{GOOD}tolls: []\n---\n", (3, 1, "did you mean 'tools'?")),
    markdown("inside", f"---\n{GOOD}tools: [{{modul: a}}]\n---\n", (3, 10, "'module'")),
    markdown("profile a text", f"---\nprofile: x\n{GOOD}---\n", (2, 1, "'profile' is not a mapping")),
    markdown("a key twice", f"---\n{GOOD}{GOOD}---\n", (3, 1, "duplicate key")),
    markdown(
        "extends of a collection",
        "---\nprofile: {name: x, extends: foundation:profiles/base.md}\n---\n",
        (2, 29, "'foundation:profiles/base.md', which does not exist"),
    ),
    markdown("include", f"---\n{GOOD}---\n\n@gone.md\n", (5, 1, "'gone.md' does not exist")),
    Case(
        "extends: Markdown without front matter",
        {PLAN: "extends: ./base.md\n", "base.md": "# Base\n"},
        [("base.md", 1, 1, "no front matter")],
    ),
    # -- includes
    Case(
        "include: missing in a quoted text",
        {PLAN: GOOD + 'instruction: "@gone.md"\n'},
        [(PLAN, 2, 15, "the included file 'gone.md' does not exist")],
    ),
    Case(
        "include: in an inline agent",
        {PLAN: GOOD + "agents:\n  a:\n    instruction: |\n      x\n      @gone.md\n"},
        [(PLAN, 6, 7, "the included file 'gone.md' does not exist")],
    ),
    Case(
        "include: in settings",
        {USER: "instruction: |\n  @gone.md\n"},
        [(USER, 2, 3, "the included file 'gone.md' does not exist")],
    ),
    Case(
        "include: circle",
        {PLAN: GOOD + "instruction: '@a.md'\n", "a.md": "@b.md", "b.md": "@a.md"},
        [("b.md", 1, 1, "circular include: a.md → b.md → a.md")],
    ),
    Case(
        "many at once",
        {
            PLAN: f"{GOOD}tolls: []\nagents: [./a.md, ./gone.md]\ninstruction: '@gone.txt'\n",
            AGENT: "---\nhoks: []\n---\n@gone.too\n",
        },
        [
            (PLAN, 2, 1, "'tolls'"),
            (PLAN, 3, 18, "'./gone.md'"),
            (PLAN, 4, 15, "'gone.txt'"),
            (AGENT, 2, 1, "'hoks'"),
            (AGENT, 4, 1, "'gone.too'"),
        ],
    ),
]  # fmt: skip


def plan_of(case: Case) -> str | None:
    """The plan that the case is about; settings are met by the default profile."""
    return next((name for name in (PLAN, MARKDOWN) if name in case.files), None)


def written(case: Case, tmp_path: Path) -> None:
    for name, text in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_malformed_document_is_reported_at_its_line(case: Case, tmp_path: Path) -> None:
    written(case, tmp_path)
    project = tmp_path / "repo" / ".amplifier"
    with pytest.raises(PlanError) as raised:
        load(plan=plan_of(case), environ={}, project=project)
    found = [
        (os.path.relpath(one.at.file, tmp_path), one.at.line, one.at.column, str(one))
        for one in raised.value.problems
    ]
    assert sorted(one[:3] for one in found) == sorted(one[:3] for one in case.problems)
    for *place, part in case.problems:
        assert any(one[:3] == tuple(place) and part in one[3] for one in found), part
    outcome = to_outcome(raised.value)
    assert (outcome.ending, outcome.exit_code) == (Ending.CONFIGURATION, 78)


def test_the_corpus_is_large() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS) >= 70


IN_THE_PROGRAM = (
    "settings: not YAML",
    "settings: no such profile",
    "agents: twice",
    "agent: not closed",
    "markdown: misspelt",
    "many at once",
)


@pytest.mark.parametrize(
    "case", [case for case in CORPUS if case.name in IN_THE_PROGRAM], ids=lambda case: case.name
)
def test_the_program_ends_with_78_and_no_traceback(case: Case, tmp_path: Path) -> None:
    written(case, tmp_path)
    plan = plan_of(case)
    options = [] if plan is None else ["--plan", plan]
    for command in (["run", *options, "hi"], ["plan", "show", *options]):
        done = run_amplifier(*command, home=tmp_path / "home", cwd=tmp_path)
        assert (done.code, done.stdout) == (78, "")
        assert "Traceback" not in done.stderr
        for name, line, column, part in case.problems:
            assert f"{name}:{line}:{column}: " in done.stderr
            assert part in done.stderr


def test_an_unreadable_file_is_reported(write: Write, tmp_path: Path) -> None:
    (tmp_path / "home" / "settings.yaml").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"settings\.yaml: cannot read the settings file: is a dir"
    ):
        load(environ={})
