"""`config_schema()` of every bundled module: true to what `mount` takes, and good to read."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import jsonschema
import pytest

from amplifier_app.base.own_packages import MODULE_PACKAGES
from amplifier_core.testing import MockCoordinator

BUNDLED = {
    point.name: point.value.partition(":")[0]
    for point in entry_points(group="amplifier.modules")
    if point.value.startswith(MODULE_PACKAGES)
}


@functools.cache
def schema_of(module_id: str) -> dict[str, Any]:
    return import_module(BUNDLED[module_id]).config_schema()


def validate(config: dict[str, Any], schema: dict[str, Any]) -> None:
    """Like `jsonschema.validate`, without checking the schema itself each time."""
    jsonschema.Draft202012Validator(schema).validate(config)


async def mount(module_id: str, config: dict[str, Any]) -> None:
    cleanup = await import_module(BUNDLED[module_id]).mount(MockCoordinator(), config)
    if cleanup is not None and (pending := cleanup()) is not None:
        await pending


def objects(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        for item in schema:
            yield from objects(item, path)
    elif isinstance(schema, dict):
        if "properties" in schema:
            yield path, schema
        for key, value in schema.items():
            if key != "default":
                yield from objects(value, f"{path}/{key}")


@pytest.mark.parametrize("module_id", BUNDLED)
def test_the_schema_is_valid_and_describes_each_key(module_id: str) -> None:
    schema = schema_of(module_id)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    for path, part in objects(schema, module_id):
        assert part["additionalProperties"] is False, path
        for key, rule in part["properties"].items():
            assert rule.get("description"), f"{path}: {key} has no description"
            assert "default" in rule or key in part["required"], f"{path}: {key} has no default"


@pytest.mark.parametrize("module_id", BUNDLED)
async def test_mount_accepts_every_default(module_id: str) -> None:
    schema = schema_of(module_id)
    for key, rule in schema["properties"].items():
        config = {key: rule["default"]}
        validate(config, schema)
        await mount(module_id, config)


@pytest.mark.parametrize("module_id", BUNDLED)
async def test_unknown_keys_are_refused_with_the_nearest_key(module_id: str) -> None:
    properties = schema_of(module_id)["properties"]
    key = min(key for key, rule in properties.items() if not rule.get("deprecated"))
    with pytest.raises(jsonschema.ValidationError):
        validate({f"{key}x": 1}, schema_of(module_id))
    with pytest.raises(ValueError, match=f"did you mean '{key}'"):
        await mount(module_id, {f"{key}x": 1})


SHORT_FORMS = [
    ("provider-anthropic", {"thinking": True}),
    ("provider-anthropic", {"thinking": "adaptive"}),
    ("provider-anthropic", {"thinking": {"budget_tokens": 2048}}),
    ("provider-anthropic", {"beta": "one, two"}),
    ("provider-anthropic", {"default_model": "some-model"}),
    ("provider-mock", {"replies": ["hello", {"text": "there"}]}),
    ("provider-mock", {"replies": [{"tool_calls": [{"name": "t", "arguments": {}}]}]}),
    ("context-simple", {"compact_threshold": 0.5}),
    ("hooks-logging", {"events": {"include": ["tool:*"]}}),
    ("loop-events", {"steps": [{"name": "a", "tools": [], "next": "b"}, {"name": "b"}]}),
    ("hooks-approval", {"rules": [{"action": "deny", "path": "a", "command": ["b", "c"]}]}),
    ("hooks-backup", {"tools": {"patch": ["target"]}, "commands": {}}),
]


@pytest.mark.parametrize(("module_id", "config"), SHORT_FORMS, ids=lambda value: str(value)[:50])
async def test_short_forms_and_other_spellings_are_in_the_schema(
    module_id: str, config: dict[str, Any]
) -> None:
    validate(config, schema_of(module_id))
    await mount(module_id, config)


WRONG = [
    ("loop-streaming", {"max_iterations": -2}),
    ("loop-basic", {"parallel_tools": "sometimes"}),
    ("loop-events", {"steps": [{"prompt": "no name"}]}),
    ("loop-events", {"planning": "sometimes"}),
    ("context-simple", {"strategy": "summarise"}),
    ("context-simple", {"compaction_threshold": 1.5}),
    ("provider-anthropic", {"thinking": "much"}),
    ("provider-anthropic", {"thinking": {"budgets": 1}}),
    ("provider-mock", {"replies": [{"txt": "hello"}]}),
    ("tool-bash", {"timeout": 0}),
    ("tool-filesystem", {"allowed_read_paths": "src"}),
    ("hooks-logging", {"events": {"only": []}}),
    ("hooks-approval", {"rules": [{"action": "maybe"}]}),
    ("hooks-backup", {"max_bytes": 0}),
]


@pytest.mark.parametrize(("module_id", "config"), WRONG, ids=lambda value: str(value)[:50])
async def test_the_schema_refuses_what_mount_refuses(
    module_id: str, config: dict[str, Any]
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(config, schema_of(module_id))
    with pytest.raises(ValueError, match="config is not valid"):
        await mount(module_id, config)


def test_secrets_are_marked() -> None:
    rule = schema_of("provider-anthropic")["properties"]["api_key"]
    assert any(part.get("writeOnly") for part in rule["anyOf"])


def test_importing_a_module_does_not_build_schemas() -> None:
    code = (
        "import sys, json, importlib\n"
        f"for name in {list(BUNDLED.values())!r}: importlib.import_module(name)\n"
        "print(json.dumps([n for n in sys.modules if 'json_schema' in n or 'config_schema' in n]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "amplifier_modules._shared.module.config_schema" not in json.loads(out.stdout)
