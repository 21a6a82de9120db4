"""Validates a tool's input against the tool's own schema.

Orchestrators check inputs too, but a tool may be called by one that does not; with this check a tool
can rely on the types it declared. Supported are schemas of plain types, of lists of them, and of
lists of objects of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (Mapping,),
}


class InvalidInput(Exception):
    """The input does not match the tool's schema; the message is for the model."""


def read_input(schema: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """The values of `given` that `schema` declares; missing optional ones are omitted.

    Keys that start with an underscore belong to the caller of the tool and are ignored. A null
    counts as missing.

    Args:
        schema: JSON schema of an object.
        given: The input from the model.

    Raises:
        InvalidInput: A value is missing, has the wrong type, is below its minimum or is unknown.
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(f"the input must be an object, not {type(given).__name__}")
    properties = cast("dict[str, dict[str, Any]]", schema["properties"])
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", given).items():
        if key.startswith("_") or value is None:
            continue
        if key not in properties:
            raise InvalidInput(f"unknown parameter {key!r}; known are: {', '.join(properties)}")
        values[key] = _checked(key, value, properties[key])
    for key in schema.get("required", ()):
        if key not in values:
            raise InvalidInput(f"the parameter {key!r} is required")
    return values


def _checked(key: str, value: Any, rule: Mapping[str, Any]) -> Any:
    kind: str = rule["type"]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    is_flag = isinstance(value, bool)
    if not isinstance(value, _TYPES[kind]) or (is_flag and kind != "boolean"):
        raise InvalidInput(f"{key!r} must be of type {kind}, not {type(value).__name__}")
    if "minimum" in rule and value < rule["minimum"]:
        raise InvalidInput(f"{key!r} must be at least {rule['minimum']}, not {value}")
    return _items(key, cast("list[Any]", value), rule) if kind == "array" else value


def _items(key: str, value: list[Any], rule: Mapping[str, Any]) -> list[Any]:
    if len(value) < rule.get("minItems", 0):
        raise InvalidInput(f"{key!r} has {len(value)} items, not {rule['minItems']} or more")
    if "items" not in rule:
        return value
    return [_item(f"{key}[{n}]", item, rule["items"]) for n, item in enumerate(value)]


def _item(key: str, value: Any, rule: Mapping[str, Any]) -> Any:
    value = _checked(key, value, rule)
    if rule["type"] != "object" or "properties" not in rule:
        return value
    try:
        return read_input(rule, value)
    except InvalidInput as error:
        raise InvalidInput(f"{key}: {error}") from None
