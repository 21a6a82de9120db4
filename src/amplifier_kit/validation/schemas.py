"""Checks of a module's schemas: of its config, and of each tool's input."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from jsonschema import Draft202012Validator

from amplifier_app.base.tool_schemas import input_schema_of, schema_problem
from amplifier_app.runtime import describe

if TYPE_CHECKING:
    from amplifier_kit.validation.findings import Findings

# A module's own code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)


def check_config_schema(findings: Findings, package: ModuleType) -> list[str]:
    """Check that the module's `config_schema()` is valid and that the config matches it.

    Returns:
        The required settings that are missing.
    """
    name = "config_schema"
    function: Any = getattr(package, name, None)
    if function is None:
        advice = (
            f"add 'def {name}() -> dict' next to mount(), returning a JSON Schema of its config"
        )
        message = "not defined: a plan's config for this module is checked only when it is mounted"
        findings.bad(name, message, advice, "info")
        return []
    expected = f"write 'def {name}() -> dict[str, Any]', returning a JSON Schema"
    if not callable(function) or inspect.iscoroutinefunction(function):
        found = "async" if callable(function) else f"a {type(function).__name__}"
        findings.bad(name, f"{name} is {found}, not a plain function", expected)
        return []
    try:
        schema = function()
    except _FOREIGN_ERRORS as error:
        findings.bad(name, f"{name}() raised {findings.describe(error)}", expected)
        return []
    if not isinstance(schema, dict):
        findings.bad(name, f"{name}() returned {type(schema).__name__}, not dict", expected)
        return []
    declared: dict[str, Any] = schema
    problem = schema_problem(declared)
    if problem is not None:
        findings.bad(name, f"{name}() does not return a valid JSON Schema: {problem}", expected)
        return []
    if declared.get("type") != "object":
        message = f"{name}() is a schema of type {declared.get('type')!r}; a config is a mapping"
        findings.bad(name, message, 'add "type": "object"')
        return []
    return _check_config(findings, declared)


def _check_config(findings: Findings, schema: dict[str, Any]) -> list[str]:
    config = findings.request.config
    findings.settings = tuple(map(str, schema.get("properties") or ()))
    required: list[Any] = schema.get("required", [])
    missing = [str(key) for key in required if key not in config]
    problems = mismatches(schema, config)
    if not problems:
        settings = describe.count(len(schema.get("properties") or ()), "setting")
        findings.good("config_schema", f"a JSON Schema with {settings}; the config matches it")
    else:
        advice = (
            f"pass the required settings: {_as_options(missing)}"
            if missing
            else "fix the config, or the schema if mount() accepts the config"
        )
        findings.bad(
            "config_schema", f"the config does not match it: {'; '.join(problems)}", advice
        )
    return missing


def _as_options(keys: list[str]) -> str:
    return " ".join(f"--config {key}=…" for key in keys)


def check_tool_schema(findings: Findings, name: str, tool: Any) -> None:
    """Check that a tool's schema is a JSON Schema of an object; calls are validated against it."""
    label = f"schema of {name!r}"
    try:
        schema = input_schema_of(tool)
    except _FOREIGN_ERRORS as error:
        message = f"the {label} raised {findings.describe(error)}"
        findings.bad("schema", message, "define it as a plain dict")
        return
    if schema is not None and not isinstance(schema, dict):
        message = f"the {label} is of type {type(schema).__name__}, not dict"
        findings.bad("schema", message, "define a JSON Schema as a plain dict")
        return
    if not schema:
        advice = "add an 'input_schema' to the tool, so that a model knows what to send"
        findings.bad("schema", f"the {label} is missing", advice, "warning")
        return
    declared = cast("dict[str, Any]", schema)
    problem = schema_problem(declared)
    undeclared = _undeclared_keys(declared) if problem is None else []
    if problem is not None:
        advice = "use the keywords of JSON Schema, draft 2020-12"
        findings.bad("schema", f"the {label} is not a valid JSON Schema: {problem}", advice)
    elif declared.get("type") != "object":
        advice = 'add "type": "object", which providers require'
        message = f"the {label} is of type {declared.get('type')!r}"
        findings.bad("schema", message, advice, "warning")
    elif undeclared:
        message = f"the {label} requires properties it does not define: {', '.join(undeclared)}"
        findings.bad("schema", message, "define them under 'properties'", "warning")
    else:
        findings.good("schema", f"the {label} is a valid JSON Schema")


def _undeclared_keys(schema: dict[str, Any]) -> list[str]:
    properties: Any = schema.get("properties") or {}
    required: Any = schema.get("required") or []
    return [str(key) for key in required if key not in properties]


def mismatches(schema: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Mismatches between a config and the schema, without values, which may be secrets."""
    errors = Draft202012Validator(schema).iter_errors(config)
    found: list[str] = []
    for error in errors:
        where = ".".join(map(str, error.absolute_path))
        if error.validator in ("required", "additionalProperties"):
            found.append(str(error.message))
        else:
            found.append(f"{where or 'config'} does not satisfy {error.validator!r}")
    return found[:5]
