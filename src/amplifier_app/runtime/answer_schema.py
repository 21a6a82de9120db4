"""Answers as JSON: the instruction for the model, and the check of what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from jsonschema import SchemaError
from jsonschema.validators import validator_for
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from amplifier_app.base.errors import UsageError
from amplifier_support.files import read_file_or_stream
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)^```\s*$", re.DOTALL | re.MULTILINE)
_START = re.compile(r"[{\[]")
_MAX_BYTES = 1024 * 1024
_MAX_ERRORS = 10
_MAX_ERROR = 300

_INSTRUCTION = """\
Answer with one JSON value that validates against the JSON Schema below, and nothing else: no text \
before or after it, no code fence.

"""
_AGAIN = "Answer the request again, with the whole corrected JSON value and nothing else."


class Answer(NamedTuple):
    """The JSON value in an answer.

    Attributes:
        text: The value as the model wrote it.
        value: The value.
        problems: Why it does not match the schema; empty if it does.
    """

    text: str
    value: Any
    problems: tuple[str, ...] = ()


class AnswerSchema:
    """A JSON Schema that answers must match.

    Args:
        schema: The schema.

    Raises:
        UsageError: It is not a valid JSON Schema.
    """

    def __init__(self, schema: Any, name: str = "the schema") -> None:
        kind = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise UsageError(
                f"{name} is not a valid JSON Schema: {error.json_path}: {error.message}",
                hint='A schema is a JSON object such as {"type": "object"}.',
            ) from None
        self._name = name
        self._schema = schema
        # An empty registry retrieves nothing over the network.
        registry: Registry[Any] = Registry()
        self._validator: Any = kind(schema, registry=registry)

    @classmethod
    def read(cls, file: Path) -> AnswerSchema:
        """The schema in a file.

        Raises:
            UsageError: The file cannot be read, or is not a JSON Schema.
        """
        try:
            data = read_file_or_stream(file, _MAX_BYTES + 1)
            text = data.decode("utf-8-sig")
        except OSError as error:
            raise UsageError(f"--schema: cannot read {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"--schema: {file} is not UTF-8 text") from None
        if len(data) > _MAX_BYTES:
            raise UsageError(f"--schema: {file} is larger than {_MAX_BYTES // 1024} KiB")
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--schema: {file} is not valid JSON: {error}") from None
        return cls(schema, f"--schema: {file}")

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The schema as `response_format` of a model call; None if it restricts nothing."""
        if not isinstance(self._schema, dict) or not self._schema:
            return None
        strict = True if _is_closed(self._schema) else None
        return {"type": "json_schema", "schema": self._schema, "strict": strict}

    @property
    def instruction(self) -> str:
        """The instruction to answer in JSON, for each request."""
        schema = json.dumps(self._schema, indent=2, ensure_ascii=False)
        # A provider keeps its cache breakpoints off a reminder, which later requests may lack.
        return (
            f'<system-reminder source="answer-schema">\n{_INSTRUCTION}{schema}\n</system-reminder>'
        )

    def feedback(self, answer: Answer | None) -> str:
        """The prompt after an answer that does not match."""
        if answer is None:
            return f"Your answer contains no JSON value. {_AGAIN}"
        listed = "\n".join(f"- {problem}" for problem in answer.problems)
        return f"Your answer does not match the JSON Schema:\n{listed}\n\n{_AGAIN}"

    def check(self, response: str) -> Answer | None:
        """The JSON value of a response; None if there is none.

        If there are several values, the first that matches is used, or else the first.

        Raises:
            UsageError: The schema refers to another one that is not part of it.
        """
        first: Answer | None = None
        for text, value in _values(response):
            answer = Answer(text, value, tuple(self._problems(value)))
            if not answer.problems:
                return answer
            first = first or answer
        return first

    def _problems(self, value: Any) -> list[str]:
        try:
            errors = sorted(self._validator.iter_errors(value), key=lambda error: error.json_path)
        except Unresolvable as error:
            raise UsageError(
                f"{self._name} refers to {error.ref!r}, which is not part of it",
                hint="Copy the referenced schema into $defs.",
            ) from None
        lines = [
            f"{error.json_path}: {cut_text(error.message, _MAX_ERROR)}"
            for error in errors[:_MAX_ERRORS]
        ]
        left = len(errors) - len(lines)
        return [*lines, f"and {left} more"] if left else lines


class TypedAnswerSchema(AnswerSchema):
    """The schema of a Python type, whose rules answers must match, too.

    Args:
        answer_type: A pydantic model, a dataclass, a `TypedDict`, `list[int]` …

    Raises:
        UsageError: It has no JSON Schema.
    """

    def __init__(self, answer_type: Any) -> None:
        try:
            self._adapter = TypeAdapter[Any](answer_type)
            schema = self._adapter.json_schema()
        except PydanticUserError as error:
            raise UsageError(f"answer_type: {answer_type!r} has no JSON Schema: {error}") from error
        super().__init__(schema, "the schema of answer_type")

    def to_object(self, value: Any) -> Any:
        """Return an object of the type.

        Raises:
            pydantic.ValidationError: The JSON value does not match.
        """
        return self._adapter.validate_json(json.dumps(value))

    def _problems(self, value: Any) -> list[str]:
        if problems := super()._problems(value):
            return problems
        try:
            self.to_object(value)
        except ValidationError as error:
            listed = error.errors()[:_MAX_ERRORS]
            return [
                f"{'.'.join(('$', *map(str, fault['loc'])))}: {cut_text(fault['msg'], _MAX_ERROR)}"
                for fault in listed
            ]
        return []


def _is_closed(schema: Any) -> bool:
    """Return True if every object in a schema lists all its keys as required and allows no others.

    Services enforce only such schemas exactly, and refuse to do so for others.
    """
    if isinstance(schema, list):
        return all(_is_closed(item) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return True
    fields = cast("dict[str, Any]", schema)
    if "properties" in fields or fields.get("type") == "object":
        properties, required = fields.get("properties"), fields.get("required", [])
        if not isinstance(properties, dict) or fields.get("additionalProperties") is not False:
            return False
        if not isinstance(required, list) or {*cast("dict[str, Any]", properties)} != {*required}:
            return False
    return all(_is_closed(field) for field in fields.values())


def _values(response: str) -> Iterator[tuple[str, Any]]:
    """The JSON values of a response: all of it, its code blocks, then objects and arrays in it."""
    for text in (response, *(block[1] for block in _FENCE.finditer(response))):
        try:
            yield text.strip(), json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            continue
        if text is response:
            return
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    position = 0
    while (start := _START.search(response, position)) is not None:
        try:
            value, position = decoder.raw_decode(response, start.start())
        except (ValueError, RecursionError):
            position = start.end()
            continue
        yield response[start.start() : position], value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
