"""The rules of model services for a tool: its name, and the JSON Schema of its input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from amplifier_core._foreign import describe_exception

# A module's code may raise anything, and may call sys.exit().
_FOREIGN_ERRORS = (Exception, SystemExit)

TOOL_NAME = r"[A-Za-z0-9_-]{1,64}"
"""The tool names that model services accept."""


def tool_faults(name: str, tool: Any) -> list[str]:
    """Why model services may reject a mounted tool."""
    faults: list[str] = []
    if not re.fullmatch(TOOL_NAME, name):
        faults.append(f"model services reject the name {name!r}")
    try:
        schema = read_input_schema(tool)
    except _FOREIGN_ERRORS as error:
        return [*faults, f"its schema raised {describe_exception(error, None)}"]
    if schema is None:
        return faults
    if not isinstance(schema, dict):
        return [*faults, f"its schema is of type {type(schema).__name__}, not dict"]
    problem = schema_problem(cast("dict[str, Any]", schema))
    return (
        faults
        if problem is None
        else [*faults, f"its schema is not a valid JSON Schema: {problem}"]
    )


def read_input_schema(tool: Any) -> Any:
    """The input schema that a tool declares; raises what the tool raises."""
    schema = getattr(tool, "input_schema", None)
    if not schema and callable(getattr(tool, "get_schema", None)):
        schema = tool.get_schema()
    return schema


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why a mapping is not a valid JSON Schema; None if it is one."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "its top"
        return f"{error.message} (at {where})"
    # A schema is data of the module, and may be of any depth or refer to itself.
    except RecursionError:
        return "it is nested without end"
    return _broken_reference(schema)


def _broken_reference(schema: dict[str, Any]) -> str | None:
    resource = DRAFT202012.create_resource(schema)
    resolver = Registry[Any]().with_resource("", resource).crawl().resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            return f"it refers to {reference!r}, which it does not define"
    return None


def _references(part: Any) -> Iterator[str]:
    """References within the schema; those in a part with an `$id` are relative to it and left out."""
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        reference = fields.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference
        for inner in fields.values():
            if not (isinstance(inner, dict) and "$id" in inner):
                yield from _references(inner)
    elif isinstance(part, list):
        for inner in cast("list[Any]", part):
            yield from _references(inner)
