"""`amplifier plan schema`: what it accepts and refuses."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from amplifier_app.plan.schema.grammar import AGENT_FILE, PLAN, SETTINGS
from amplifier_app.plan.schema.json_schema import Definitions, embed, plan_schema
from amplifier_app.plan.schema.rules import Agents, Check, Fields, Rule
from amplifier_app.plan.tree.nodes import NOWHERE, to_node
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.sources.loading import load_plan
from tests.support.cli import run_amplifier, succeed

ROOT = Path(__file__).parents[3]

schema_of_plans = functools.cache(plan_schema)


def errors(document: Any, place: str = "plan") -> list[str]:
    schema = {**schema_of_plans(), "$ref": f"#/$defs/{place}"}
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
    finished = succeed("plan", "schema")
    assert finished.stderr == ""
    assert run_amplifier("schema", "plan").stdout == finished.stdout
    schema = json.loads(finished.stdout)
    assert schema == schema_of_plans()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not [path for path, part in walk(schema) if isinstance(part.get("$id"), str)]


def test_every_reference_resolves() -> None:
    for path, part in walk(schema_of_plans()):
        target = part.get("$ref")
        if not isinstance(target, str):
            continue
        found: Any = schema_of_plans()
        for step in target.removeprefix("#/").split("/"):
            assert step in found, f"{path}: {target}"
            found = found[step]


def test_every_key_has_a_description() -> None:
    for path, part in walk(schema_of_plans()):
        inside_condition = path.endswith(("/if", "/then")) or "/anyOf/" in path
        if path.endswith("/properties") or inside_condition:
            continue
        for key, rule in part.get("properties", {}).items():
            rule = (
                schema_of_plans()["$defs"][rule["$ref"].rpartition("/")[2]]
                if "$ref" in rule
                else rule
            )
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
    "{extends: default, session: {budget: {max_steps: 5, max_cost: 0.5, max_seconds: '${S}'}}}",
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
    "orchestrator: {module: loop-streaming, config: {max_steps: 3}}",
    "context: {module: context-simple, config: {max_tokens: -1}}",
    "hooks: [{module: hooks-logging, config: {events: {includes: []}}}]",
    "providers: [{module: provider-anthropic, config: {thinking: {budget_tokens: 1}}}]",
    "providers: [{module: provider-mock, config: {replies: [{txt: hello}]}}]",
    "agents: {a: {tools: [{module: tool-bash, config: {timeot: 3}}]}}",
    "agents: [{name: a, tools: [{module: tool-bash, config: {timeot: 3}}]}]",
    "session: {budget: {max_token: 3}}",
    "session: {budget: {max_steps: 0}}",
    "session: {budget: {max_steps: 1.5}}",
    "session: {budget: {max_cost: cheap}}",
    "session: {budget: 5}",
    "fallbacks: {openai: 1}",
]


@pytest.mark.parametrize("text", BAD_CONFIG)
def test_the_config_of_bundled_modules_is_checked(text: str) -> None:
    assert errors({"extends": "default", **yaml.safe_load(text)})


VALUES: list[Any] = [
    *(None, "", " ", "x", "x y", "./x", "${X}", -1, 0, 1, 1.5, True, [], ["x"], ["x", 1], [[]]),
    *({}, {"x": "y"}, {"x": None}, {"x": 1}, {"x y": "z"}, {"module": "m"}, {"module": None}),
    *([None], [{}], [{"module": "m"}], [{"module": "m", "config": [1]}], [{"module": 1}]),
    *({"env": "A"}, {"env": ["A", "$B"]}, {"env": None}, {"no_other": True}, {"no_other": 1}),
    *("user", "plain", {"show": "user"}, {"show": None}, {"max_cost": 0.5}, {"max_steps": 0.5}),
    *("off", False, "workspace", {"write": None}, {"write": "."}, {"write": [" "]}, {"write": []}),
    *({"network": "all"}, {"network": "a.b"}, {"network": ["a.b:80"]}, {"network": []}),
    *({"network": ["a b"]}, {"network": ["*.a"]}, {"read": "host"}, {"read": 1}, {"level": "x"}),
]


def rules(keys: Mapping[str, Rule], where: str) -> Iterator[tuple[str, Rule]]:
    for key, rule in keys.items():
        yield f"{where}.{key}", rule
        yield from rules(rule.keys if isinstance(rule, Fields) else {}, f"{where}.{key}")


def test_every_rule_accepts_the_same_values_as_its_schema() -> None:
    printed = Definitions([])
    every = [
        *rules(PLAN.keys, "plan"),
        *rules(SETTINGS.keys, "settings"),
        *rules(AGENT_FILE.keys, "agent"),
    ]
    for where, rule in every:
        if isinstance(rule, Agents):
            # These are checked once their files have been read.
            continue
        schema = {**printed.use(rule), "$defs": printed.found}
        valid = jsonschema.Draft202012Validator(schema).is_valid
        for value in VALUES:
            problems = Problems()
            rule.read(to_node(value, NOWHERE), "value", Check(problems))
            assert valid(value) is not bool(problems), (where, value, problems.sorted_problems())


def test_references_of_a_module_schema_are_adjusted_to_its_place() -> None:
    schema = {
        "$id": "urn:x",
        "$ref": "#/$defs/a",
        "$defs": {"a": {"properties": {"$ref": {"$ref": "#"}, "default": {"$ref": "#/$defs/a"}}}},
        "default": {"$ref": "#"},
    }
    assert embed(schema, "#/$defs/m") == {
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
