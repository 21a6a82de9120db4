"""Checks a tool's input with jsonschema, and describes what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from amplifier_support.text import cut_text

_MAX_PROBLEMS = 5
_MAX_MESSAGE = 300
_FAULTS = (jsonschema.SchemaError, Unresolvable, re.error, RecursionError)


class UnusableSchema(Exception):
    """The schema is not valid; the message says why."""


class SchemaValidator:
    """Checks inputs against one schema.

    Args:
        schema: A JSON schema, by default of draft 2020-12.

    Raises:
        UnusableSchema: It is not valid.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        kind: Any = validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except _FAULTS as error:
            raise _unusable(error) from error
        # An empty registry: a tool's schema never makes this process fetch a document.
        self._validator = kind(schema, registry=Registry())

    def problem(self, arguments: dict[str, Any]) -> str | None:
        """Describe why `arguments` do not satisfy the schema; None if they do.

        Raises:
            UnusableSchema: A part of the schema that they reach is not valid.
        """
        try:
            errors = list(self._validator.iter_errors(arguments))
        except _FAULTS as error:
            raise _unusable(error) from error
        if not errors:
            return None
        errors.sort(key=lambda error: [str(step) for step in error.absolute_path])
        return "; ".join(_worded(error) for error in errors[:_MAX_PROBLEMS])


def _unusable(error: Exception) -> UnusableSchema:
    return UnusableSchema(str(error).splitlines()[0])


def _worded(error: Any) -> str:
    path = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
    ).lstrip(".")
    message = cut_text(error.message, _MAX_MESSAGE)
    return f"{path}: {message}" if path else message
