"""Malformed plans, settings, agents, includes and Markdown: each has its own clear error at its place."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.plan.tree.problems import PlanError
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
    environ: Mapping[str, str] = MappingProxyType({})


def plan(
    name: str,
    text: str,
    problems: list[tuple[int | None, int | None, str]],
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Case:
    return Case(f"plan: {name}", {PLAN: text}, [(PLAN, *problem) for problem in problems], environ)


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


PLANS = [
    plan("section of another program", GOOD + "ui: {}\n", [(2, 1, "unknown key 'ui' in the plan")]),
    plan("empty file", "", [(1, 1, "the plan is empty")]),
    plan("comments only", "# nothing\n", [(1, 1, "the plan is empty")]),
    plan("a list", "- a\n- b\n", [(1, 1, "the plan is a list, not a mapping")]),
    plan("a text", "hello\n", [(1, 1, "the plan is a string, not a mapping")]),
    plan("no session", "tools: []\n", [(1, 1, "no orchestrator"), (1, 1, "no context")]),
    plan(
        "no context", "session:\n  orchestrator: loop-basic\n", [(1, 1, "the plan has no context")]
    ),
    plan("tab", "session:\n\torchestrator: x\n", [(2, 1, "indent with spaces")]),
    plan("deeper", "session:\n  a: x\n   b: y\n", [(3, 5, "start in the same column")]),
    plan("shallower", "session:\n  a: x\n b: y\n", [(3, 2, "start in the same column")]),
    plan("entry", "tools:\n  - module: x\n  module: y\n", [(3, 3, "start in the same column")]),
    plan("no colon", "session:\n  a: x\ntools\n  - b: x\n", [(4, 6, "put ':' and a space")]),
    plan("two values on a line", GOOD + "name: a: b\n", [(2, 8, "quotes around")]),
    plan("open bracket", GOOD + "tools: [a\nhooks: []\n", [(3, 6, "starts on line 2")]),
    plan("open quote", GOOD + "name: 'x\n", [(3, 1, "quoted scalar that starts on line 2")]),
    plan("two documents", GOOD + "---\n" + GOOD, [(2, 1, "a second document")]),
    plan("duplicate key", GOOD + "tools: []\nname: x\ntools: []\n", [(4, 1, "first on line 2")]),
    plan(
        "duplicate key inside",
        GOOD + "tools:\n  - module: a\n    config: {b: 1, c: 2, b: 3}\n",
        [(4, 26, "duplicate key 'b': first on line 4")],
    ),
    plan("python tag", GOOD + "name: !!python/object/apply:os.system x\n", [(2, 7, "tag")]),
    plan("own tag", GOOD + "name: !env HOME\n", [(2, 7, "the tag !env is not allowed")]),
    plan("alias nowhere", GOOD + "name: *there\n", [(2, 7, "*there is not defined")]),
    plan("alias of itself", "x-a: &a [*a]\n" + GOOD, [(1, 10, "*a contains itself")]),
    plan("a list as key", "? [a]\n: b\n" + GOOD, [(1, 3, "a key must be a string")]),
    plan("control character", GOOD + "name: a\x01b\n", [(2, 8, "U+0001")]),
    plan("misspelt section", GOOD + "tolls: []\n", [(2, 1, "did you mean 'tools'?")]),
    plan("unknown section", GOOD + "zzz: 1\n", [(2, 1, "available: agents, ")]),
    plan(
        "misspelt session key",
        "session:\n  orchestrater: loop-basic\n  context: context-simple\n",
        [(2, 3, "did you mean 'orchestrator'?")],
    ),
    plan("session a list", "session: []\n", [(1, 1, "'session' is a list")]),
    plan("tools a mapping", GOOD + "tools:\n  a: 1\n", [(2, 1, "'tools' is a mapping")]),
    plan(
        "misspelt entry key",
        GOOD + "tools:\n  - modul: tool-bash\n",
        [(3, 5, "unknown key 'modul' in tools[0]; did you mean 'module'?")],
    ),
    plan(
        "entry without module",
        GOOD + "tools:\n  - config: {}\n",
        [(3, 5, "tools[0] has no 'module'")],
    ),
    plan("entry a number", GOOD + "tools: [7]\n", [(2, 9, "'tools[0]' is a number")]),
    plan("module a number", GOOD + "tools: [{module: 7}]\n", [(2, 18, "'tools[0].module'")]),
    plan(
        "source for module",
        GOOD + "tools: [{module: ./my-tool}]\n",
        [(2, 18, "for a path or URL, use 'source:'")],
    ),
    plan(
        "config a list",
        GOOD + "tools:\n  - module: a\n    config:\n      - x\n",
        [(4, 5, "'tools[0].config' is a list; expected a mapping")],
    ),
    plan(
        "the same tool twice",
        GOOD + "tools:\n  - module: a\n  - module: a\n",
        [(4, 5, "duplicate entry 'a' in tools: first on line 3")],
    ),
    plan("when on a tool", GOOD + "tools: [{module: a, when: {env: X}}]\n", [(2, 21, "'when'")]),
    plan(
        "misspelt when",
        GOOD + "providers: [{module: p, when: {no_others: true}}]\n",
        [(2, 32, "did you mean 'no_other'?")],
    ),
    plan(
        "when with a dollar",
        GOOD + "providers: [{module: p, when: {env: $KEY}}]\n",
        [(2, 37, "not a variable name")],
    ),
    plan("empty when", GOOD + "providers: [{module: p, when: {}}]\n", [(2, 25, "no_other: true")]),
    plan("extends nothing", "extends: defualt\n", [(1, 10, "did you mean 'default'?")]),
    plan("extends no file", "extends: ./gone.yaml\n", [(1, 10, "does not exist")]),
    plan("extends itself", "extends: ./plan.yaml\n", [(1, 10, "circular 'extends': plan.yaml → ")]),
    plan(
        "exclude nothing",
        "extends: default\nexclude: [tool-bahs]\n",
        [(2, 11, "did you mean 'tool-bash'?")],
    ),
    plan(
        "orchestrator twice",
        GOOD + "orchestrator: {module: loop-streaming}\n",
        [(2, 16, "also set under 'session'")],
    ),
    plan(
        "negative limit",
        "session: {injection_size_limit: -1}\norchestrator: a\ncontext: b\n",
        [(1, 33, "whole number")],
    ),
    plan(
        "budgets",
        GOOD + "agents: {a: {session: {budget: {max_cost: free, max_step: 1}}}}\n",
        [(2, 43, "a number greater than 0"), (2, 49, "did you mean 'max_steps'?")],
    ),
    plan(
        "fallback on an unknown provider",
        GOOD + "providers: [provider-mock]\nfallbacks: [mock, mokc]\n",
        [(3, 19, "did you mean 'mock'?")],
    ),
    plan(
        "fallbacks twice",
        "session: {orchestrator: a, context: b, fallbacks: []}\nfallbacks: []\n",
        [(2, 1, "also set under 'session'")],
    ),
    plan(
        "unset variables",
        GOOD + "name: ${ONE}\ninstruction: a ${TWO} b ${THREE:-x} $${FOUR}\n",
        [(2, 7, "ONE is not set"), (3, 14, "TWO is not set")],
    ),
    plan("open variable", GOOD + "name: ${ONE\n", [(2, 7, "'${' is not closed")]),
    plan("bad variable", GOOD + "name: ${1}\n", [(2, 7, "does not start with a variable name")]),
    plan("shell form", GOOD + "name: ${A:?no}\n", [(2, 7, "write '${A}' or")]),
    plan("http", GOOD + "tools: [{module: a, source: git+http://h/r}]\n", [(2, 29, "'http'")]),
    plan("bare folder", GOOD + "tools: [{module: a, source: my/tool}]\n", [(2, 29, "'./my/tool'")]),
    plan("merge of a text", GOOD + "x-a: {<<: text}\n", [(2, 7, "'<<' merges mappings only")]),
    plan("not a number", GOOD + "x-a: !!int many\n", [(2, 6, "'many' is not a YAML int")]),
    plan("too deep", GOOD + "x-a: " + "[" * 70 + "]" * 70 + "\n", [(2, 69, "nested more than")]),
    plan("agents a text", GOOD + "agents: mine\n", [(2, 9, "'agents' is a string")]),
    plan("exclude a number", GOOD + "exclude: [5]\n", [(2, 11, "'exclude' is a number")]),
    plan("empty name", GOOD + "name: ''\n", [(2, 7, "'name' is empty")]),
    plan("instruction a list", GOOD + "instruction: [a]\n", [(2, 1, "'instruction' is a list")]),
    plan(
        "orchestrator a number", "session: {orchestrator: 1, context: c}\n", [(1, 25, "a number")]
    ),
    plan(
        "two sources",
        "session:\n  orchestrator: {module: a, source: ./a}\n  orchestrator_source: ./b\n"
        "  context: c\n",
        [(3, 24, "the orchestrator has two sources; see line 2")],
    ),
    plan(
        "source without module",
        "session: {orchestrator_source: ./b, context: c}\n",
        [(1, 32, "the plan has no orchestrator")],
    ),
    plan(
        "no_other a text",
        GOOD + "providers: [{module: p, when: {no_other: x}}]\n",
        [(2, 42, "true or false")],
    ),
    plan("empty source", GOOD + "tools: [{module: a, source: ''}]\n", [(2, 29, "is empty")]),
    plan(
        "mixed key", GOOD + "tools: [{module: a, {b: 1}: 2}]\n", [(2, 21, "a key must be a string")]
    ),
    plan(
        "variable as a source",
        GOOD + "tools: [{module: a, source: '${S}'}]\n",
        [(2, 29, "over 'ext' are not allowed")],
        {"S": "git+ext::sh -c id".replace(" ", "%20")},
    ),
    plan(
        "many at once",
        "session: {orchestrator: x}\ntolls: []\nhooks: 3\ntools: [{module: a, modul: b}]\n",
        [(2, 1, "'tolls'"), (3, 8, "'hooks' is a number"), (4, 21, "'modul'")],
    ),
]


def plan_of(case: Case) -> str | None:
    """The plan that the case is about; settings are met by the default profile."""
    return next((name for name in (PLAN, MARKDOWN) if name in case.files), None)


def written(case: Case, tmp_path: Path) -> None:
    for name, text in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("case", [*PLANS, *CORPUS], ids=lambda case: case.name)
def test_a_malformed_document_is_reported_at_its_line(case: Case, tmp_path: Path) -> None:
    written(case, tmp_path)
    project = tmp_path / "repo" / ".amplifier"
    with pytest.raises(PlanError) as raised:
        load(plan=plan_of(case), environ=case.environ, project=project)
    found = [
        (os.path.relpath(one.at.file, tmp_path), one.at.line, one.at.column, str(one))
        for one in raised.value.problems
        # The modules of the plans do not exist, which is reported as well.
        if "unknown module" not in one.message
    ]
    assert sorted(one[:3] for one in found) == sorted(one[:3] for one in case.problems)
    for *place, part in case.problems:
        assert any(one[:3] == tuple(place) and part in one[3] for one in found), part
    outcome = to_outcome(raised.value)
    assert (outcome.ending, outcome.exit_code) == (Ending.CONFIGURATION, 78)


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


def test_the_line_is_shown_with_a_caret() -> None:
    Path("plan.yaml").write_text(GOOD + "tools:\n  - modul: tool-bash\n", encoding="utf-8")
    with pytest.raises(PlanError) as raised:
        load(plan="plan.yaml")
    assert str(raised.value) == (
        "plan.yaml:3:5: unknown key 'modul' in tools[0]; did you mean 'module'?\n"
        "  3 |   - modul: tool-bash\n"
        "    |     ^"
    )


def test_a_shown_line_contains_no_secret_and_no_control_character() -> None:
    Path("plan.yaml").write_text(
        GOOD + 'tolls: [{api_key: sk-123}]\nname: "\\e[2J\x7f"\nhoks: 1\n', encoding="utf-8"
    )
    with pytest.raises(PlanError) as raised:
        load(plan="plan.yaml")
    text = str(raised.value)
    assert "sk-123" not in text
    assert "\x7f" not in text


def test_invalid_utf8_is_reported_with_its_line() -> None:
    Path("plan.yaml").write_bytes(b"name: a\ninstruction: \xff\n")
    with pytest.raises(PlanError, match=r"plan\.yaml:2: byte 0xff is not UTF-8 text"):
        load(plan="plan.yaml")
