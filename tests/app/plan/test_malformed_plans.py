"""Every malformed plan of the corpus gives its own clear error at the right line."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.plan import PlanError
from amplifier_app.sources.loading import load


class Case(NamedTuple):
    """A plan, and for each problem it has: line, column and a part of what is said."""

    name: str
    plan: str
    problems: list[tuple[int | None, int | None, str]]
    environ: dict[str, str] = {}  # noqa: RUF012 - read only


GOOD = "session: {orchestrator: loop-basic, context: context-simple}\n"

CORPUS = [
    Case("empty file", "", [(1, 1, "the plan is empty")]),
    Case("comments only", "# nothing\n", [(1, 1, "the plan is empty")]),
    Case("a list", "- a\n- b\n", [(1, 1, "the plan is a list, not a mapping")]),
    Case("a text", "hello\n", [(1, 1, "the plan is a string, not a mapping")]),
    Case("no session", "tools: []\n", [(1, 1, "no orchestrator"), (1, 1, "no context")]),
    Case(
        "no context", "session:\n  orchestrator: loop-basic\n", [(1, 1, "the plan has no context")]
    ),
    Case("tab", "session:\n\torchestrator: x\n", [(2, 1, "indent with spaces")]),
    Case("deeper", "session:\n  a: x\n   b: y\n", [(3, 5, "start in the same column")]),
    Case("shallower", "session:\n  a: x\n b: y\n", [(3, 2, "start in the same column")]),
    Case("entry", "tools:\n  - module: x\n  module: y\n", [(3, 3, "start in the same column")]),
    Case("no colon", "session:\n  a: x\ntools\n  - b: x\n", [(4, 6, "put ':' and a space")]),
    Case("two values on a line", GOOD + "name: a: b\n", [(2, 8, "quotes around")]),
    Case("open bracket", GOOD + "tools: [a\nhooks: []\n", [(3, 6, "starts on line 2")]),
    Case("open quote", GOOD + "name: 'x\n", [(3, 1, "quoted scalar that starts on line 2")]),
    Case("two documents", GOOD + "---\n" + GOOD, [(2, 1, "a second document")]),
    Case("duplicate key", GOOD + "tools: []\nname: x\ntools: []\n", [(4, 1, "first on line 2")]),
    Case(
        "duplicate key inside",
        GOOD + "tools:\n  - module: a\n    config: {b: 1, c: 2, b: 3}\n",
        [(4, 26, "duplicate key 'b': first on line 4")],
    ),
    Case("python tag", GOOD + "name: !!python/object/apply:os.system x\n", [(2, 7, "tag")]),
    Case("own tag", GOOD + "name: !env HOME\n", [(2, 7, "the tag !env is not allowed")]),
    Case("alias nowhere", GOOD + "name: *there\n", [(2, 7, "*there is not defined")]),
    Case("alias of itself", "x-a: &a [*a]\n" + GOOD, [(1, 10, "*a contains itself")]),
    Case("a list as key", "? [a]\n: b\n" + GOOD, [(1, 3, "a key must be a string")]),
    Case("control character", GOOD + "name: a\x01b\n", [(2, 8, "U+0001")]),
    Case("misspelt section", GOOD + "tolls: []\n", [(2, 1, "did you mean 'tools'?")]),
    Case("unknown section", GOOD + "zzz: 1\n", [(2, 1, "available: agents, ")]),
    Case(
        "misspelt session key",
        "session:\n  orchestrater: loop-basic\n  context: context-simple\n",
        [(2, 3, "did you mean 'orchestrator'?")],
    ),
    Case("session a list", "session: []\n", [(1, 1, "'session' is a list")]),
    Case("tools a mapping", GOOD + "tools:\n  a: 1\n", [(2, 1, "'tools' is a mapping")]),
    Case(
        "misspelt entry key",
        GOOD + "tools:\n  - modul: tool-bash\n",
        [(3, 5, "unknown key 'modul' in tools[0]; did you mean 'module'?")],
    ),
    Case(
        "entry without module",
        GOOD + "tools:\n  - config: {}\n",
        [(3, 5, "tools[0] has no 'module'")],
    ),
    Case("entry a number", GOOD + "tools: [7]\n", [(2, 9, "'tools[0]' is a number")]),
    Case("module a number", GOOD + "tools: [{module: 7}]\n", [(2, 18, "'tools[0].module'")]),
    Case(
        "source for module",
        GOOD + "tools: [{module: ./my-tool}]\n",
        [(2, 18, "for a path or URL, use 'source:'")],
    ),
    Case(
        "config a list",
        GOOD + "tools:\n  - module: a\n    config:\n      - x\n",
        [(4, 5, "'tools[0].config' is a list; expected a mapping")],
    ),
    Case(
        "the same tool twice",
        GOOD + "tools:\n  - module: a\n  - module: a\n",
        [(4, 5, "duplicate entry 'a' in tools: first on line 3")],
    ),
    Case("when on a tool", GOOD + "tools: [{module: a, when: {env: X}}]\n", [(2, 21, "'when'")]),
    Case(
        "misspelt when",
        GOOD + "providers: [{module: p, when: {no_others: true}}]\n",
        [(2, 32, "did you mean 'no_other'?")],
    ),
    Case(
        "when with a dollar",
        GOOD + "providers: [{module: p, when: {env: $KEY}}]\n",
        [(2, 37, "not a variable name")],
    ),
    Case("empty when", GOOD + "providers: [{module: p, when: {}}]\n", [(2, 25, "no_other: true")]),
    Case("extends nothing", "extends: defualt\n", [(1, 10, "did you mean 'default'?")]),
    Case("extends no file", "extends: ./gone.yaml\n", [(1, 10, "does not exist")]),
    Case("extends itself", "extends: ./plan.yaml\n", [(1, 10, "circular 'extends': plan.yaml → ")]),
    Case(
        "exclude nothing",
        "extends: default\nexclude: [tool-bahs]\n",
        [(2, 11, "did you mean 'tool-bash'?")],
    ),
    Case(
        "orchestrator twice",
        GOOD + "orchestrator: {module: loop-streaming}\n",
        [(2, 16, "also set under 'session'")],
    ),
    Case(
        "negative limit",
        "session: {injection_size_limit: -1}\norchestrator: a\ncontext: b\n",
        [(1, 33, "whole number")],
    ),
    Case(
        "budgets",
        GOOD + "agents: {a: {session: {budget: {max_cost: free, max_step: 1}}}}\n",
        [(2, 43, "a number greater than 0"), (2, 49, "did you mean 'max_steps'?")],
    ),
    Case(
        "fallback on an unknown provider",
        GOOD + "providers: [provider-mock]\nfallbacks: [mock, mokc]\n",
        [(3, 19, "did you mean 'mock'?")],
    ),
    Case(
        "fallbacks twice",
        "session: {orchestrator: a, context: b, fallbacks: []}\nfallbacks: []\n",
        [(2, 1, "also set under 'session'")],
    ),
    Case(
        "unset variables",
        GOOD + "name: ${ONE}\ninstruction: a ${TWO} b ${THREE:-x} $${FOUR}\n",
        [(2, 7, "ONE is not set"), (3, 14, "TWO is not set")],
    ),
    Case("open variable", GOOD + "name: ${ONE\n", [(2, 7, "'${' is not closed")]),
    Case("bad variable", GOOD + "name: ${1}\n", [(2, 7, "does not start with a variable name")]),
    Case("shell form", GOOD + "name: ${A:?no}\n", [(2, 7, "write '${A}' or")]),
    Case("http", GOOD + "tools: [{module: a, source: git+http://h/r}]\n", [(2, 29, "'http'")]),
    Case("bare folder", GOOD + "tools: [{module: a, source: my/tool}]\n", [(2, 29, "'./my/tool'")]),
    Case("merge of a text", GOOD + "x-a: {<<: text}\n", [(2, 7, "'<<' merges mappings only")]),
    Case("not a number", GOOD + "x-a: !!int many\n", [(2, 6, "'many' is not a YAML int")]),
    Case("too deep", GOOD + "x-a: " + "[" * 70 + "]" * 70 + "\n", [(2, 69, "nested more than")]),
    Case("agents a text", GOOD + "agents: mine\n", [(2, 9, "'agents' is a string")]),
    Case("exclude a number", GOOD + "exclude: [5]\n", [(2, 11, "'exclude' is a number")]),
    Case("empty name", GOOD + "name: ''\n", [(2, 7, "'name' is empty")]),
    Case("instruction a list", GOOD + "instruction: [a]\n", [(2, 1, "'instruction' is a list")]),
    Case(
        "orchestrator a number", "session: {orchestrator: 1, context: c}\n", [(1, 25, "a number")]
    ),
    Case(
        "two sources",
        "session:\n  orchestrator: {module: a, source: ./a}\n  orchestrator_source: ./b\n"
        "  context: c\n",
        [(3, 24, "the orchestrator has two sources; see line 2")],
    ),
    Case(
        "source without module",
        "session: {orchestrator_source: ./b, context: c}\n",
        [(1, 32, "the plan has no orchestrator")],
    ),
    Case(
        "no_other a text",
        GOOD + "providers: [{module: p, when: {no_other: x}}]\n",
        [(2, 42, "true or false")],
    ),
    Case("empty source", GOOD + "tools: [{module: a, source: ''}]\n", [(2, 29, "is empty")]),
    Case(
        "mixed key", GOOD + "tools: [{module: a, {b: 1}: 2}]\n", [(2, 21, "a key must be a string")]
    ),
    Case(
        "variable as a source",
        GOOD + "tools: [{module: a, source: '${S}'}]\n",
        [(2, 29, "over 'ext' are not allowed")],
        {"S": "git+ext::sh -c id".replace(" ", "%20")},
    ),
    Case(
        "many at once",
        "session: {orchestrator: x}\ntolls: []\nhooks: 3\ntools: [{module: a, modul: b}]\n",
        [(2, 1, "'tolls'"), (3, 8, "'hooks' is a number"), (4, 21, "'modul'")],
    ),
]


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_malformed_plan_is_reported_at_its_line(case: Case, tmp_path: Path) -> None:
    Path("plan.yaml").write_text(textwrap.dedent(case.plan), encoding="utf-8")
    with pytest.raises(PlanError) as raised:
        load(plan="plan.yaml", environ=case.environ)
    # The modules of the plans do not exist, which is reported as well.
    found = [one for one in raised.value.problems if "unknown module" not in one.message]
    assert [(p.at.line, p.at.column) for p in found] == [place[:2] for place in case.problems]
    for problem, (line, _, part) in zip(found, case.problems, strict=True):
        assert part in str(problem)
        assert str(problem).startswith(f"plan.yaml:{line}:")
    outcome = to_outcome(raised.value)
    assert outcome.ending is Ending.CONFIGURATION
    assert outcome.exit_code == 78


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
