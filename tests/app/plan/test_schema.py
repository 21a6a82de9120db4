"""`amplifier plan schema`: what it takes, what it refuses, and that it knows what loading knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from amplifier_app.plan import PlanError
from amplifier_app.plan.schema import plan_schema
from amplifier_app.plan.schema_parts import embedded
from amplifier_app.sources.loading import load_plan
from tests.app.plan import test_malformed_documents as documents
from tests.app.plan.test_malformed_plans import CORPUS, Case
from tests.support.cli import run_amplifier

ROOT = Path(__file__).parents[3]
SCHEMA = plan_schema()

# Cases of the two corpora that are not the schema's to refuse.
NOT_STRUCTURAL = {
    # YAML itself, which no schema sees.
    "duplicate key",
    "duplicate key inside",
    "alias of itself",
    "too deep",
    "settings: a key twice",
    # Between two places of a plan.
    "the same tool twice",
    "fallback on an unknown provider",
    "fallbacks twice",
    "orchestrator twice",
    "two sources",
    # Other files and the environment.
    "extends nothing",
    "extends no file",
    "extends itself",
    "exclude nothing",
    "unset variables",
    # Grammars inside a text.
    "open variable",
    "bad variable",
    "shell form",
    "variable as a source",
    "http",
    "bare folder",
    "settings: bad source",
    "settings: unset in source",
    "agents: bad source",
    "agents: unset",
    # Files and names that are looked for.
    "settings: no such profile",
    "settings: profile a path",
    "agents: no such file",
    "agents: no match",
    "agents: no agent's file",
    "agents: a folder",
    "agents: a pattern of folders",
    "agents: no such name",
    "agents: twice",
    "agents: no such folder",
    "include: missing in a quoted text",
    "include: in an inline agent",
    "include: in settings",
    "include: circle",
}
DOCUMENTS = [case for case in documents.CORPUS if any(".yaml" in file for file in case.files)]


def errors(document: Any, place: str = "plan") -> list[str]:
    schema = {**SCHEMA, "$ref": f"#/$defs/{place}"}
    return [
        error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def walk(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from walk(item, f"{path}/{index}")
    elif isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key not in ("default", "const", "enum", "examples"):
                yield from walk(value, f"{path}/{key}")


def test_the_command_prints_a_valid_schema_without_an_id() -> None:
    finished = run_amplifier("plan", "schema")
    assert finished.code == 0, finished.stderr
    assert finished.stderr == ""
    schema = json.loads(finished.stdout)
    assert schema == SCHEMA
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not [path for path, part in walk(schema) if isinstance(part.get("$id"), str)]


def test_every_reference_resolves() -> None:
    for path, part in walk(SCHEMA):
        target = part.get("$ref")
        if not isinstance(target, str):
            continue
        found: Any = SCHEMA
        for step in target.removeprefix("#/").split("/"):
            assert step in found, f"{path}: {target}"
            found = found[step]


def test_every_key_has_a_description() -> None:
    for path, part in walk(SCHEMA):
        inside_condition = path.endswith(("/if", "/then")) or "/anyOf/" in path
        if path.endswith("/properties") or inside_condition:
            continue
        for key, rule in part.get("properties", {}).items():
            rule = SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
            assert rule.get("description"), f"{path}: {key}"


@pytest.mark.parametrize("profile", sorted((ROOT / "profiles").glob("*.yaml")), ids=str)
def test_shipped_profiles_are_valid(profile: Path) -> None:
    assert errors(yaml.safe_load(profile.read_text(encoding="utf-8"))) == []


def test_plans_of_the_readme_are_valid() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    plans = re.findall(r"^```yaml\n(# .*plan\.yaml\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert plans
    for plan in plans:
        assert errors(yaml.safe_load(plan)) == []


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_structural_mistakes_are_refused_and_only_those(case: Case) -> None:
    try:
        document = yaml.safe_load(case.plan)
    except (yaml.YAMLError, RecursionError, TypeError, ValueError):
        return
    assert bool(errors(document)) is (case.name not in NOT_STRUCTURAL)


@pytest.mark.parametrize("case", DOCUMENTS, ids=lambda case: case.name)
def test_structural_mistakes_in_settings_and_agents_are_refused_and_only_those(
    case: documents.Case,
) -> None:
    wrong = {file for file, *_ in case.problems}
    for file, text in case.files.items():
        if not file.endswith(".yaml"):
            continue
        try:
            document = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            continue
        place = "settings" if "settings" in file else "plan" if file == "plan.yaml" else "agent"
        structural = file in wrong and case.name not in NOT_STRUCTURAL
        assert bool(errors(document, place)) is structural, file


GOOD = [
    "{session: {orchestrator: loop-basic, context: context-simple}}",
    "{orchestrator: loop-basic, context: {module: context-simple}}",
    "{extends: default, tools: [tool-bash, {module: tool-filesystem, config: null}]}",
    "{extends: default, tools: [{module: tool-bash, config: {timeout: '${T:-3}'}}]}",
    "{extends: default, tools: [{module: tool-bash, config: {env_passthrough: ['${A}', B]}}]}",
    "{extends: default, tools: [{module: tool-bash, source: ./mine, config: {own: 1}}]}",
    "{extends: default, tools: [{module: other-tool, config: {own: {deep: [1]}}}]}",
    "{extends: default, exclude: tool-bash, x-note: {any: thing}}",
    "{extends: default, providers: [{module: provider-local, when: null}]}",
    "{extends: default, providers: [{module: p, instance_id: two, when: {env: [A, B]}}]}",
    "{extends: default, session: {orchestrator_source: ./o, injection_size_limit: '${N}'}}",
    "{extends: default, session: {orchestrator: {config: {max_iterations: 3}}}}",
    "{extends: default, agents: {a: {description: d, tools: [tool-bash]}, b: null}}",
    "{extends: default, agents: [{name: a, exclude: tool-bash, instruction: Be.}]}",
    "{extends: default, agents: {inline: {a: {description: d, x-own: 1}}}}",
    "{extends: default, agents: {include: {description: an agent of that name}}}",
    "{extends: default, agents: none}",
    "{extends: default, session: {budget: {max_turns: 5, max_cost: 0.5, max_seconds: '${S}'}}}",
    "{extends: default, session: {budget: {max_cost: null}}, fallbacks: openai}",
    "{extends: default, session: {budget: null, fallbacks: [openai, provider-local]}}",
    "{extends: default, agents: {a: {session: {budget: {max_tokens: 9}}, fallbacks: [x]}}}",
]


@pytest.mark.parametrize("text", GOOD)
def test_plans_that_load_are_valid(text: str, tmp_path: Path) -> None:
    Path("plan.yaml").write_text(text, encoding="utf-8")
    load_plan("plan.yaml")
    assert errors(yaml.safe_load(text)) == []


BAD_CONFIG = [
    "tools: [{module: tool-bash, config: {timeot: 3}}]",
    "tools: [{module: tool-bash, config: {timeout: soon}}]",
    "tools: [{module: tool-bash, instance_id: sh, config: {timeout: 0}}]",
    "session: {orchestrator: {module: loop-basic, config: {max_iterations: many}}}",
    "orchestrator: {module: loop-streaming, config: {max_turns: 3}}",
    "context: {module: context-simple, config: {max_tokens: -1}}",
    "hooks: [{module: hooks-logging, config: {events: {includes: []}}}]",
    "providers: [{module: provider-anthropic, config: {thinking: {budget_tokens: 1}}}]",
    "providers: [{module: provider-mock, config: {replies: [{txt: hello}]}}]",
    "agents: {a: {tools: [{module: tool-bash, config: {timeot: 3}}]}}",
    "agents: [{name: a, tools: [{module: tool-bash, config: {timeot: 3}}]}]",
    "session: {budget: {max_token: 3}}",
    "session: {budget: {max_turns: 0}}",
    "session: {budget: {max_turns: 1.5}}",
    "session: {budget: {max_cost: cheap}}",
    "session: {budget: 5}",
    "fallbacks: {openai: 1}",
]


@pytest.mark.parametrize("text", BAD_CONFIG)
def test_the_config_of_bundled_modules_is_checked(text: str) -> None:
    assert errors({"extends": "default", **yaml.safe_load(text)})


PLACES = {
    "plan": "zzz: 1",
    "session": "session: {zzz: 1}",
    "orchestrator": "orchestrator: {zzz: 1}",
    "context": "context: {zzz: 1}",
    "provider_entry": "providers: [{module: p, zzz: 1}]",
    "tool_entry": "tools: [{module: t, zzz: 1}]",
    "hook_entry": "hooks: [{module: h, zzz: 1}]",
    "when": "providers: [{module: p, when: {zzz: 1}}]",
    "agent_by_name": "agents: {a: {zzz: 1}}",
    "agent": "agents: [./agent.yaml]",
    "settings": "",
}


@pytest.mark.parametrize("place", PLACES)
def test_loading_and_the_schema_have_the_same_keys(place: str, home: Path) -> None:
    Path("plan.yaml").write_text("extends: default\n" + PLACES[place], encoding="utf-8")
    Path("agent.yaml").write_text("zzz: 1\n", encoding="utf-8")
    home.mkdir()
    (home / "settings.yaml").write_text("zzz: 1\n" if place == "settings" else "", encoding="utf-8")
    with pytest.raises(PlanError, match=r"available: ([\w, -]+)") as raised:
        load_plan("plan.yaml")
    hint = raised.value.problems[0].hint
    assert hint is not None
    known = set(hint.removeprefix("available: ").split(", "))
    assert set(SCHEMA["$defs"][place]["properties"]) == known


def test_references_of_a_module_schema_are_adjusted_to_its_place() -> None:
    schema = {
        "$id": "urn:x",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"properties": {"$ref": {"$ref": "#"}, "default": {"$ref": "#/$defs/a"}}}},
        "default": {"$ref": "#"},
    }
    assert embedded(schema, "#/$defs/m") == {
        "$ref": "#/$defs/m/$defs/a",
        "$defs": {
            "a": {
                "properties": {
                    "$ref": {"$ref": "#/$defs/m"},
                    "default": {"$ref": "#/$defs/m/$defs/a"},
                }
            }
        },
        "default": {"$ref": "#"},
    }
