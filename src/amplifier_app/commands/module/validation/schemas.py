"""The two schemas a module may have: of its config, and of each tool's input."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.tool_schemas import schema_problem

if TYPE_CHECKING:
    from amplifier_app.commands.module.validation.findings import Findings

# A module's own code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)


def check_config_schema(findings: Findings, package: ModuleType) -> list[str]:
    """Whether the module's `config_schema()` is one, and the config fits it.

    Returns:
        The settings that are required and not given.
    """
    name = "config_schema"
    function: Any = getattr(package, name, None)
    if function is None:
        advice = f"add 'def {name}() -> dict' beside mount(): a JSON Schema of its config"
        message = "there is none: a plan's config for it is checked only when it is mounted"
        findings.bad(name, message, advice, "info")
        return []
    expected = f"write 'def {name}() -> dict[str, Any]', which gives a JSON Schema"
    if not callable(function) or inspect.iscoroutinefunction(function):
        found = "async" if callable(function) else f"a {type(function).__name__}"
        findings.bad(name, f"{name} is {found}, not a plain function", expected)
        return []
    try:
        schema = function()
    except _FOREIGN_ERRORS as error:
        findings.bad(name, f"{name}() raised {findings.told(error)}", expected)
        return []
    if not isinstance(schema, dict):
        findings.bad(name, f"{name}() returned {type(schema).__name__}, not dict", expected)
        return []
    told: dict[str, Any] = schema
    problem = schema_problem(told)
    if problem is not None:
        findings.bad(name, f"{name}() gives no JSON Schema: {problem}", expected)
        return []
    if told.get("type") != "object":
        message = f"{name}() is a schema of type {told.get('type')!r}; a config is a mapping"
        findings.bad(name, message, 'give it "type": "object"')
        return []
    return _check_config(findings, told)


def _check_config(findings: Findings, schema: dict[str, Any]) -> list[str]:
    config = findings.request.config
    required: list[Any] = schema.get("required", [])
    wanting = [str(key) for key in required if key not in config]
    problems = misfits(schema, config)
    if not problems:
        count = len(schema.get("properties") or ())
        settings = "1 setting" if count == 1 else f"{count} settings"
        findings.good("config_schema", f"a JSON Schema with {settings}, which the config fits")
    else:
        advice = (
            f"give what is required: {_as_options(wanting)}"
            if wanting
            else "mend the config, or the schema if mount() takes it"
        )
        findings.bad("config_schema", f"the config does not fit it: {'; '.join(problems)}", advice)
    return wanting


def _as_options(keys: list[str]) -> str:
    return " ".join(f"--config {key}=…" for key in keys)


def check_tool_schema(findings: Findings, name: str, tool: Any) -> None:
    """A tool's schema has to be a JSON Schema of an object, or calls cannot be checked."""
    label = f"schema of {name!r}"
    try:
        schema: Any = getattr(tool, "input_schema", None)
        if not schema and callable(getattr(tool, "get_schema", None)):
            schema = tool.get_schema()
    except _FOREIGN_ERRORS as error:
        message = f"the {label} raised {findings.told(error)}"
        findings.bad("schema", message, "give it as a plain dict")
        return
    if schema is not None and not isinstance(schema, dict):
        message = f"the {label} is of type {type(schema).__name__}, not dict"
        findings.bad("schema", message, "give a JSON Schema as a plain dict")
        return
    if not schema:
        advice = "give the tool an 'input_schema', so that a model knows what to send"
        findings.bad("schema", f"there is no {label}", advice, "warning")
        return
    told = cast("dict[str, Any]", schema)
    problem = schema_problem(told)
    undeclared = _undeclared(told) if problem is None else []
    if problem is not None:
        advice = "the keywords are those of JSON Schema, draft 2020-12"
        findings.bad("schema", f"the {label} is no JSON Schema: {problem}", advice)
    elif told.get("type") != "object":
        advice = 'give it "type": "object", which is what providers take'
        message = f"the {label} is of type {told.get('type')!r}"
        findings.bad("schema", message, advice, "warning")
    elif undeclared:
        message = f"the {label} requires what it does not describe: {', '.join(undeclared)}"
        findings.bad("schema", message, "describe it under 'properties'", "warning")
    else:
        findings.good("schema", f"the {label} is a JSON Schema")


def _undeclared(schema: dict[str, Any]) -> list[str]:
    properties: Any = schema.get("properties") or {}
    required: Any = schema.get("required") or []
    return [str(key) for key in required if key not in properties]


def misfits(schema: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Where a config does not fit the schema; values are not shown, they may be secrets."""
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(schema).iter_errors(config)
    found: list[str] = []
    for error in errors:
        where = ".".join(map(str, error.absolute_path))
        if error.validator in ("required", "additionalProperties"):
            found.append(str(error.message))
        else:
            found.append(f"{where or 'config'} does not satisfy {error.validator!r}")
    return found[:5]
