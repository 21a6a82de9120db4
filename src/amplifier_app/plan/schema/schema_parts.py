"""Embed the config schemas of modules in the schema of plans."""

from __future__ import annotations

from typing import Any

from amplifier_app.plan.schema.rules import REFERENCE, Schema

_ANNOTATIONS = ("description", "default", "deprecated")
_NAMED = ("properties", "patternProperties", "$defs", "dependentSchemas")
_DATA = ("default", "const", "enum", "examples", "required")


def embed(schema: Any, place: str) -> Any:
    """A schema with its references adjusted to its place in the plan schema."""
    if isinstance(schema, list):
        return [embed(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            moved[key] = {name: embed(rule, place) for name, rule in value.items()}
        elif key in _DATA:
            moved[key] = value
        elif key not in ("$schema", "$id"):
            moved[key] = embed(value, place)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference[1:]
    return moved


def for_files(schema: Schema) -> Schema:
    """A config schema as it applies to files, which may leave values empty or use `${VARIABLES}`."""
    allowed = _with_references(schema)
    kind = schema.get("type")
    return {**allowed, "type": [*_types(kind), "null"]} if kind is not None else allowed


def _with_references(schema: Any) -> Any:
    """The schema with a string that contains a variable allowed for every value."""
    if not isinstance(schema, dict):
        return schema
    open_to: Schema = dict(schema)
    for key in ("properties", "$defs", "patternProperties"):
        if key in schema:
            members: Schema = schema[key]
            one = _with_references if key == "$defs" else _or_reference
            open_to[key] = {name: one(rule) for name, rule in members.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            open_to[key] = _or_reference(schema[key])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            open_to[key] = [_with_references(rule) for rule in schema[key]]
    return open_to


def _or_reference(schema: Any) -> Any:
    if schema is True or schema == {} or not isinstance(schema, dict):
        return schema
    rule: Schema = _with_references(schema)
    types = _types(rule.get("type"))
    limited = rule.keys() & {"pattern", "minLength", "maxLength", "enum", "const", "format"}
    if "string" in types and not limited:
        return rule
    annotations = {key: rule.pop(key) for key in _ANNOTATIONS if key in rule}
    reference = {"type": "string", "pattern": REFERENCE}
    if types and "string" not in types and not limited:
        # One rule where possible: editors derive their messages from it.
        return {**annotations, **rule, "type": [*types, "string"], "pattern": REFERENCE}
    choices = rule["anyOf"] if rule.keys() == {"anyOf"} else [rule]
    return {**annotations, "anyOf": [*choices, reference]}


def _types(kind: Any) -> list[str]:
    if kind is None:
        return []
    return [kind] if isinstance(kind, str) else list(kind)
