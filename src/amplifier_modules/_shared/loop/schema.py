"""Checks a tool's input against its JSON schema.

Most tool schemas use a handful of keywords, so those are compiled to plain predicates first; what a
predicate accepts, jsonschema would accept too. Anything else, an unsupported keyword or an input that
the predicate rejects, is left to `schema_validator`, which also writes the message.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from amplifier_core._foreign import describe_foreign

if TYPE_CHECKING:
    from amplifier_modules._shared.loop.schema_validator import SchemaValidator

logger = logging.getLogger(__name__)

Predicate = Callable[[Any], bool]

MAX_REMEMBERED = 1000

_ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$id",
        # Without a format checker, which is the default, a format is an annotation.
        "format",
    }
)

# Dialects in which the keywords below have the same meaning.
_DIALECTS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
    }
)


class _NotCovered(Exception):
    """The schema uses a rule that the predicates do not support."""


class InputChecker:
    """Checks inputs of tools; caches the compiled schema of each tool.

    A tool whose schema is itself invalid is reported once and then runs unchecked.
    """

    def __init__(self) -> None:
        self._compiled: dict[int, tuple[Any, dict[str, Any], _Schema]] = {}
        self._unusable: dict[int, Any] = {}
        self._serializable: dict[int, tuple[Any, Any]] = {}

    def problem(self, tool: Any, name: str, arguments: dict[str, Any]) -> str | None:
        """Describe why `arguments` are invalid for `tool`; None if they are valid.

        Args:
            tool: The tool, with its schema in `input_schema` or from `get_schema()`.
            name: Name to use in a log message.
            arguments: The input to check.
        """
        schema = self.schema(tool, name)
        if not schema:
            return None
        known = self._compiled.get(id(tool))
        if known is None or known[1] != schema:
            if len(self._compiled) >= MAX_REMEMBERED:
                del self._compiled[next(iter(self._compiled))]
            known = (tool, schema, _Schema(name, schema))
            self._compiled[id(tool)] = known
        return known[2].problem(arguments)

    def schema(self, tool: Any, name: str) -> dict[str, Any] | None:
        """The schema of a tool's input, empty if it has none.

        None if the tool fails to provide it; that is logged once, and the tool cannot be offered.
        """
        try:
            schema = input_schema(tool)
            if self._serializable.get(id(tool), (tool, None))[1] is not schema:
                _check_serializable(schema)
                self._serializable[id(tool)] = (tool, schema)
            return schema
        # The tool's own code: a tool that fails is skipped; the others remain usable.
        except Exception as error:
            if id(tool) not in self._unusable:
                self._unusable[id(tool)] = tool
                text = describe_foreign(error, kind="tool", name=name, obj=tool)
                logger.warning("%s; the model is not offered this tool", text)
            return None


def input_schema(tool: Any) -> dict[str, Any]:
    """The JSON schema of a tool's input: `input_schema`, else `get_schema()`, else empty.

    Raises:
        TypeError: It is not a mapping.
        Exception: The tool's own code failed.
    """
    call, schema = "input_schema", getattr(tool, "input_schema", None)
    if schema is None or schema == {}:
        getter = getattr(tool, "get_schema", None)
        call, schema = "get_schema()", getter() if callable(getter) else None
    if schema is None:
        return {}
    if not isinstance(schema, dict):
        raise TypeError(f"{call} is {type(schema).__name__}, expected a JSON schema as a dict")
    return cast("dict[str, Any]", schema)


def _check_serializable(schema: dict[str, Any]) -> None:
    """
    Raises:
        TypeError: The schema cannot be sent to a model.
    """
    try:
        json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"its input schema cannot be written as JSON: {error}") from error


class _Schema:
    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        self._name = name
        self._schema = schema
        self._validator: SchemaValidator | None = None
        self._unusable = False
        try:
            self._accepts: Predicate = _predicate(schema)
        except _NotCovered:
            self._accepts = _nothing

    def problem(self, arguments: dict[str, Any]) -> str | None:
        if self._unusable or self._accepts(arguments):
            return None
        # Importing jsonschema costs about as much as everything else a short run imports.
        from amplifier_modules._shared.loop.schema_validator import SchemaValidator, UnusableSchema

        try:
            if self._validator is None:
                self._validator = SchemaValidator(self._schema)
            return self._validator.problem(arguments)
        except UnusableSchema as error:
            self._unusable = True
            logger.warning(
                "Tool %r has an input schema that is not valid (%s); its input is not checked",
                self._name,
                error,
            )
            return None


def _nothing(value: Any) -> bool:
    return False


def _anything(value: Any) -> bool:
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: dict[str, Predicate] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": _is_integer,
}


def _predicate(schema: Any) -> Predicate:
    """Compile `schema` to a function that is true only for values that satisfy it.

    Raises:
        _NotCovered: The schema uses a keyword, or a form of one, that is not supported.
    """
    if schema is True:
        return _anything
    if not isinstance(schema, dict):
        raise _NotCovered
    checks: list[Predicate] = []
    rules = cast("dict[str, Any]", schema)
    for keyword, rule in rules.items():
        if keyword in _ANNOTATIONS:
            continue
        compile_rule = _KEYWORDS.get(keyword)
        if compile_rule is None:
            raise _NotCovered
        checks.append(compile_rule(rule, rules))
    if len(checks) == 1:
        return checks[0]
    return lambda value: all(check(value) for check in checks)


def _type(rule: Any, _: dict[str, Any]) -> Predicate:
    names = cast("list[Any]", rule) if isinstance(rule, list) else [rule]
    if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
        raise _NotCovered
    kinds = [_TYPES[name] for name in names]
    return kinds[0] if len(kinds) == 1 else lambda value: any(kind(value) for kind in kinds)


def _enum(rule: Any, _: dict[str, Any]) -> Predicate:
    if not isinstance(rule, list):
        raise _NotCovered
    allowed = cast("list[Any]", rule)
    # Strings only: in JSON 1 equals 1.0 but not true; in Python it equals both.
    if not all(isinstance(item, str) for item in allowed):
        raise _NotCovered
    return lambda value: isinstance(value, str) and value in allowed


def _dialect(rule: Any, _: dict[str, Any]) -> Predicate:
    if not isinstance(rule, str) or rule.rstrip("#") not in _DIALECTS:
        raise _NotCovered
    return _anything


def _pattern(rule: Any, _: dict[str, Any]) -> Predicate:
    try:
        search = re.compile(rule).search
    except (re.error, TypeError):
        raise _NotCovered from None
    return lambda value: not isinstance(value, str) or search(value) is not None


def _properties(rule: Any, _: dict[str, Any]) -> Predicate:
    if not isinstance(rule, dict):
        raise _NotCovered
    checks = [(name, _predicate(part)) for name, part in cast("dict[str, Any]", rule).items()]
    return lambda value: (
        not isinstance(value, dict)
        or all(
            name not in value or check(cast("dict[str, Any]", value)[name])
            for name, check in checks
        )
    )


def _required(rule: Any, _: dict[str, Any]) -> Predicate:
    if not isinstance(rule, list):
        raise _NotCovered
    names = cast("list[Any]", rule)
    return lambda value: not isinstance(value, dict) or all(name in value for name in names)


def _additional(rule: Any, rules: dict[str, Any]) -> Predicate:
    known = rules.get("properties", {})
    if not isinstance(known, dict) or "patternProperties" in rules:
        raise _NotCovered
    if rule is False:
        return lambda value: not isinstance(value, dict) or all(key in known for key in value)
    check = _predicate(rule)
    return lambda value: (
        not isinstance(value, dict)
        or all(key in known or check(item) for key, item in cast("dict[str, Any]", value).items())
    )


def _items(rule: Any, rules: dict[str, Any]) -> Predicate:
    if "prefixItems" in rules:
        raise _NotCovered
    check = _predicate(rule)
    return lambda value: (
        not isinstance(value, list) or all(check(item) for item in cast("list[Any]", value))
    )


def _match_any(rule: Any, _: dict[str, Any]) -> Predicate:
    if not isinstance(rule, list) or not rule:
        raise _NotCovered
    parts = [_predicate(part) for part in cast("list[Any]", rule)]
    return lambda value: any(part(value) for part in parts)


def _limit(applies: Predicate, holds: Callable[[Any, Any], bool]) -> Any:
    def compile_rule(rule: Any, _: dict[str, Any]) -> Predicate:
        if not _is_number(rule):
            raise _NotCovered
        return lambda value: not applies(value) or holds(value, rule)

    return compile_rule


_KEYWORDS: dict[str, Callable[[Any, dict[str, Any]], Predicate]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda rule, rules: _enum([rule], rules),
    "pattern": _pattern,
    "$schema": _dialect,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "anyOf": _match_any,
    "minimum": _limit(_is_number, lambda value, rule: value >= rule),
    "maximum": _limit(_is_number, lambda value, rule: value <= rule),
    "exclusiveMinimum": _limit(_is_number, lambda value, rule: value > rule),
    "exclusiveMaximum": _limit(_is_number, lambda value, rule: value < rule),
    "minLength": _limit(_TYPES["string"], lambda value, rule: len(value) >= rule),
    "maxLength": _limit(_TYPES["string"], lambda value, rule: len(value) <= rule),
    "minItems": _limit(_TYPES["array"], lambda value, rule: len(value) >= rule),
    "maxItems": _limit(_TYPES["array"], lambda value, rule: len(value) <= rule),
}
