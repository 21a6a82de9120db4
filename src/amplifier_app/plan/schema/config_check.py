"""Check a module's config in a plan against the module's schema, with a line for each problem.

Messages never quote a value: it may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jsonschema.validators import validator_for
from referencing import Registry

from amplifier_app.base.errors import Location
from amplifier_app.plan.schema.module_schemas import current_keys
from amplifier_app.plan.schema.rules import Schema
from amplifier_app.plan.tree.nodes import ListNode, MapNode, Node, Scalar, plain_data
from amplifier_app.plan.tree.problems import Problem, suggest
from amplifier_app.plan.tree.yaml_reader import plain_scalar

_TYPES = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "empty",
}
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters long",
    "maxLength": "at most {} characters long",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "multipleOf": "a multiple of {}",
    "const": "{}",
}


def config_problems(
    entry: MapNode, module_id: str, schema: Schema, *, partial: bool = False
) -> list[Problem]:
    """The problems in the config of one module.

    A string that parses as the expected number or boolean is accepted: variables are strings.

    Args:
        entry: The module's entry in the plan.
        module_id: Its id.
        schema: The JSON Schema of its config.
        partial: Whether the entry only changes another one, which may have the required keys.
    """
    config = entry.items.get("config")
    node = config if isinstance(config, MapNode) else MapNode({}, entry.at)
    # An empty registry, so that checking a config never fetches anything.
    validator: Any = validator_for(schema)(schema, registry=Registry())
    problems: list[Problem] = []
    for error in validator.iter_errors(plain_data(node)):
        if partial and error.validator == "required":
            continue
        problems += _to_problems(error, node, module_id, validator)
    return list(dict.fromkeys(problems))


def ignored_keys(entry: MapNode, module_id: str, schema: Schema) -> list[str]:
    """Warnings about keys without effect in the config of one module.

    The schema gives the reason as `x-ignored` of the key.
    """
    config = entry.items.get("config")
    if not isinstance(config, MapNode):
        return []
    rules: Schema = schema.get("properties", {})
    rules_by_key = [(key, rules.get(key)) for key, value in plain_data(config).items() if value]
    return [
        f"{config.key_at(key)}: {key!r} of {module_id} has no effect: {rule['x-ignored']}"
        for key, rule in rules_by_key
        if isinstance(rule, dict) and "x-ignored" in rule
    ]


def _to_problems(error: Any, config: MapNode, module_id: str, validator: Any) -> Iterator[Problem]:
    if _parses_as_expected(error, validator):
        return
    if error.context and (specific := _of_one_alternative(error)):
        for cause in specific:
            yield from _to_problems(cause, config, module_id, validator)
        return
    path = list(error.absolute_path)
    node = _at(config, path)
    if isinstance(node, Scalar) and node.unset:
        return
    where = f"'{_dotted(path)}' of {module_id}" if path else f"the config of {module_id}"
    if error.validator == "additionalProperties" and isinstance(node, MapNode):
        known: Schema = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", {})
        for key in node.items:
            if key not in known and not any(re.search(pattern, key) for pattern in patterns):
                message = f"unknown key {key!r} in {where}"
                yield Problem(message, node.key_at(key), suggest(key, current_keys(known)))
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield Problem(f"{where} is missing {key!r}", node.at, f"add '{key}: …'")
    else:
        reason = _reason(error.schema)
        message = f"{where} {'is not supported' if reason else _expected(error)}"
        yield Problem(message, _place(config, path), reason)


def _reason(schema: Schema) -> str | None:
    """The description of a key that is refused because it was removed."""
    described = str(schema.get("description") or "").rstrip(".")
    refused = schema.get("deprecated") and "enum" in schema
    return described[:1].lower() + described[1:] if refused and described else None


def _parses_as_expected(error: Any, validator: Any) -> bool:
    if not isinstance(error.instance, str):
        return False
    value = plain_scalar(error.instance)
    return not isinstance(value, str) and validator.evolve(schema=error.schema).is_valid(value)


def _of_one_alternative(error: Any) -> list[Any]:
    """The errors of the alternative whose type matches the value."""
    by_alternative: dict[Any, list[Any]] = {}
    for cause in error.context:
        by_alternative.setdefault(cause.relative_schema_path[0], []).append(cause)
    fitting = [
        errors
        for errors in by_alternative.values()
        if not any(
            cause.validator in ("type", "enum", "const") for cause in errors if not cause.path
        )
    ]
    return min(fitting, key=len) if fitting else []


def _expected(error: Any) -> str:
    if error.validator in ("type", "enum", "anyOf", "oneOf"):
        return f"must be {_either(list(dict.fromkeys(_accepted(error.schema))))}"
    limit = json.dumps(error.validator_value, ensure_ascii=False)
    if error.validator in _LIMITS:
        return f"must be {_LIMITS[error.validator].format(limit)}"
    return f"is invalid: {error.validator} {limit if len(limit) < 80 else '…'}"


def _accepted(schema: Schema) -> Iterator[str]:
    """Yield the types that a schema accepts, each in a few words."""
    for word in ("anyOf", "oneOf"):
        for alternative in schema.get(word, ()):
            yield from _accepted(alternative)
    if "$ref" in schema:
        yield _TYPES["object"]
    elif "enum" in schema or "const" in schema:
        yield from map(json.dumps, schema.get("enum") or [schema["const"]])
    elif "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        yield from (_TYPES.get(kind, kind) for kind in kinds)


def _either(accepted: Sequence[str]) -> str:
    words = [word for word in accepted if word != _TYPES["null"]] or list(accepted)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _at(config: MapNode, path: Iterable[str | int]) -> Node:
    node: Node = config
    for step in path:
        if isinstance(node, MapNode):
            node = node.items[str(step)]
        elif isinstance(node, ListNode):
            # Not an entry that is called like this.
            node = node.items[int(step)]
    return node


def _place(config: MapNode, path: list[str | int]) -> Location:
    """Return the location of a problem: the key, or the entry of a list."""
    if not path:
        return config.at
    parent = _at(config, path[:-1])
    return parent.key_at(str(path[-1])) if isinstance(parent, MapNode) else _at(config, path).at


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
