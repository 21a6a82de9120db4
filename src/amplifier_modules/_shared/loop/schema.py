"""Checks a tool's input against its JSON schema.

Most tool schemas use a handful of keywords, which are checked here; what is accepted, jsonschema would
accept too. Anything else, an unsupported keyword or a rejected input, is left to `schema_validator`, which
also writes the message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from amplifier_core._foreign import describe_foreign

if TYPE_CHECKING:
    from amplifier_modules._shared.loop.schema_validator import SchemaValidator

logger = logging.getLogger(__name__)

_Keyword = Callable[[Any, Any, dict[str, Any]], bool]
"""Return True if a value satisfies a rule, which is in the schema given last."""

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

    def report_invalid_schemas(self, tools: Mapping[str, Any]) -> None:
        """Log each tool whose schema is not valid: a service that refused a request may not name it."""
        from amplifier_modules._shared.loop.schema_validator import SchemaValidator, UnusableSchema

        for name, tool in tools.items():
            try:
                SchemaValidator(self.schema(tool, name) or {})
            except UnusableSchema as error:
                text = "Tool %r has an input schema that is not valid (%s); services refuse it"
                logger.warning(text, name, error)

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

    def problem(self, arguments: dict[str, Any]) -> str | None:
        # A schema may have any form; jsonschema reports what is wrong with it.
        with contextlib.suppress(Exception):
            if self._unusable or _accepts(self._schema, arguments):
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


def _accepts(schema: Any, value: Any) -> bool:
    """Return True if `value` satisfies `schema`; False also where the schema has anything not known here.

    Raises:
        Exception: A keyword has a value of another form than expected.
    """
    if not isinstance(schema, dict):
        return schema is True
    rules = cast("dict[str, Any]", schema)
    return all(
        keyword in _ANNOTATIONS or (keyword in _KEYWORDS and _KEYWORDS[keyword](rule, value, rules))
        for keyword, rule in rules.items()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return value.is_integer() if isinstance(value, float) else _is_number(value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": _is_integer,
}


def _matches_any_type(names: Any, value: Any, _: Any) -> bool:
    return any(_TYPES[name](value) for name in (names if isinstance(names, list) else [names]))


def _matches_properties(parts: Any, value: Any, _: Any) -> bool:
    return not isinstance(value, dict) or all(
        name not in value or _accepts(part, value[name]) for name, part in parts.items()
    )


def _has_only_known(rule: Any, value: Any, rules: dict[str, Any]) -> bool:
    known = rules.get("properties", {})
    return not isinstance(value, dict) or all(
        key in known or _accepts(rule, item) for key, item in cast("dict[str, Any]", value).items()
    )


def _limit(applies: Callable[[Any], bool], holds: Callable[[Any, Any], bool]) -> _Keyword:
    return lambda rule, value, _: _is_number(rule) and (not applies(value) or holds(value, rule))


_KEYWORDS: dict[str, _Keyword] = {
    "$schema": lambda rule, _, __: rule.rstrip("#") in _DIALECTS,
    "type": _matches_any_type,
    # Strings only: in JSON 1 equals 1.0 but not true; in Python it equals both.
    "enum": lambda rule, value, _: (
        isinstance(rule, list) and isinstance(value, str) and value in rule
    ),
    "const": lambda rule, value, _: isinstance(value, str) and value == rule,
    "pattern": lambda rule, value, _: not isinstance(value, str) or bool(re.search(rule, value)),
    "properties": _matches_properties,
    "required": lambda rule, value, _: (
        isinstance(rule, list) and (not isinstance(value, dict) or value.keys() >= set(rule))
    ),
    "additionalProperties": _has_only_known,
    "items": lambda rule, value, _: (
        not isinstance(value, list) or all(_accepts(rule, item) for item in value)
    ),
    "anyOf": lambda rule, value, _: any(_accepts(part, value) for part in rule),
    "minimum": _limit(_is_number, operator.ge),
    "maximum": _limit(_is_number, operator.le),
    "exclusiveMinimum": _limit(_is_number, operator.gt),
    "exclusiveMaximum": _limit(_is_number, operator.lt),
    "minLength": _limit(_TYPES["string"], lambda value, rule: len(value) >= rule),
    "maxLength": _limit(_TYPES["string"], lambda value, rule: len(value) <= rule),
    "minItems": _limit(_TYPES["array"], lambda value, rule: len(value) >= rule),
    "maxItems": _limit(_TYPES["array"], lambda value, rule: len(value) <= rule),
}
