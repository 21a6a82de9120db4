"""Configs of modules against their schemas: what is said, and at which line."""

from typing import Any

import pytest

from amplifier_app.plan.schema.config_check import config_problems
from amplifier_app.plan.schema.module_schemas import keys_at, rule_at, schema_of_installed
from amplifier_app.plan.tree.interpolation import interpolate
from amplifier_app.plan.tree.nodes import MapNode
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_yaml


def check(module_id: str, text: str, schema: dict[str, Any] | None = None) -> list[str]:
    problems = Problems()
    lines = "".join(f"  {line}\n" for line in text.splitlines())
    tree = read_yaml(f"config:\n{lines}".encode(), "f", problems)
    problems.raise_if_any()
    assert tree is not None
    entry = interpolate(tree, {"SET": "7"}, problems, keep_unset=True)
    assert isinstance(entry, MapNode)
    found = schema or schema_of_installed(module_id)
    assert found is not None
    return [str(problem) for problem in config_problems(entry, module_id, found)]


WRONG = [
    (
        "tool-bash",
        "timeot: 3",
        "f:2:3: unknown key 'timeot' in the config of tool-bash; did you mean 'timeout'?",
    ),
    ("tool-bash", "timeout: soon", "f:2:3: 'timeout' of tool-bash must be a number"),
    ("tool-bash", "timeout: 0", "f:2:3: 'timeout' of tool-bash must be more than 0"),
    (
        "tool-bash",
        "env_passthrough:\n  - A\n  - 1",
        "f:4:7: 'env_passthrough[1]' of tool-bash must be a string",
    ),
    (
        "tool-bash",
        "allowed_paths: src",
        "f:2:3: 'allowed_paths' of tool-bash must be a list",
    ),
    (
        "provider-anthropic",
        "max_tokens: 0",
        "f:2:3: 'max_tokens' of provider-anthropic must be more than 0",
    ),
    (
        "provider-anthropic",
        "thinking: much",
        "f:2:3: 'thinking' of provider-anthropic must be a mapping, true or false, "
        '"adaptive", "enabled" or "disabled"',
    ),
    (
        "provider-anthropic",
        "thinking: {budgets: 1}",
        "f:2:14: unknown key 'budgets' in 'thinking' of provider-anthropic; "
        "did you mean 'budget_tokens'?",
    ),
    (
        "provider-mock",
        "replies:\n  - tool_calls: [{input: {}}]",
        "f:3:20: 'replies[0].tool_calls[0]' of provider-mock is missing 'name'; add 'name: …'",
    ),
    (
        "hooks-logging",
        "events: {include: '*'}",
        "f:2:12: 'events.include' of hooks-logging must be a list",
    ),
    (
        "context-simple",
        "strategy: other",
        "f:2:3: 'strategy' of context-simple must be \"truncate\"",
    ),
    ("loop-basic", "max_iterations: 1.5", "f:2:3: 'max_iterations' of loop-basic must be a"),
    ("tool-bash", "timeout: ${SOON:-never}", "f:2:3: 'timeout' of tool-bash must be a number"),
]


@pytest.mark.parametrize(("module_id", "text", "said"), WRONG)
def test_each_mistake_is_reported_at_its_key(module_id: str, text: str, said: str) -> None:
    found = check(module_id, text)
    assert len(found) == 1
    assert found[0].startswith(said)


def test_entries_of_lists_are_located_by_position_not_by_name() -> None:
    schema = {"properties": {"servers": {"items": {"properties": {"port": {"type": "integer"}}}}}}
    text = "servers:\n  - {module: '1', port: x}\n  - {module: '0'}"
    assert check("tool-any", text, schema) == [
        "f:3:21: 'servers[0].port' of tool-any must be a whole number"
    ]


def test_all_mistakes_are_reported_at_once() -> None:
    found = check("tool-bash", "timeot: 1\nmax_output: 5\nmax_spill: -1\nenvs: []")
    assert sorted(one.split(":")[1] for one in found) == ["2", "3", "4", "5"]


@pytest.mark.parametrize(
    "text",
    [
        "timeout: '3'",
        "timeout: '2.5'",
        "timeout: ${SET}",
        "timeout: ${NOT_SET}",
        "max_output: ${SET}000",
        "env_passthrough: ['${NOT_SET}']",
        "{}",
    ],
)
def test_strings_that_parse_as_the_expected_type_and_unset_variables_are_accepted(
    text: str,
) -> None:
    assert check("tool-bash", text) == []


def test_messages_never_contain_a_value() -> None:
    for text in (
        "api_key: [sk-123]",
        "base_url: {sk-123: 1}",
        "effort: sk-123",
        "beta: {a: sk-123}",
    ):
        found = check("provider-anthropic", text)
        assert found
        assert "sk-123" not in "".join(found).replace("unknown key 'sk-123'", "")


def test_errors_of_any_module_schema_have_a_message() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "maxItems": 1}, "b": {"not": {"const": 5}}},
        "required": ["a"],
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    }
    assert check("mine", "b: 5\na: [1, 2]", schema) == [
        "f:3:3: 'a' of mine must be a list of at most 1",
        "f:2:3: 'b' of mine is invalid: not {\"const\": 5}",
    ]
    assert check("mine", "a: []\nx-y: 1\nc: 1", schema) == [
        "f:4:3: unknown key 'c' in the config of mine; available: a, b"
    ]


def test_rules_are_found_through_references_even_circular_ones() -> None:
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "Its name."},
                    "child": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
            }
        },
    }
    assert rule_at(schema, ["child", "child", "name"]) == {
        "type": "string",
        "description": "Its name.",
    }
    assert keys_at(schema, ["child"]) == ["name", "child"]
    assert rule_at(schema, ["child", "nme"]) is None
