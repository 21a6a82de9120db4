"""Tool inputs are checked as jsonschema would, mostly without it."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules._shared.loop.schema import (
    InputChecker,
    _accepts,  # pyright: ignore[reportPrivateUsage]
)


def problem(schema: Any, value: Any) -> str | None:
    return InputChecker().problem(SimpleNamespace(input_schema=schema), "tool", value)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, -1.5, 2.5, "", "a", "ab", "abc", "b", "é"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
types = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])
small = st.integers(0, 3)


def schemas() -> st.SearchStrategy[Any]:
    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {},
            optional={
                "type": types | st.lists(types, min_size=1, max_size=2, unique=True),
                "enum": st.lists(
                    st.sampled_from(["a", "ab", "b"]), min_size=1, max_size=2, unique=True
                ),
                "const": st.sampled_from(["a", "b"]),
                "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
                "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
                "additionalProperties": st.booleans() | inner,
                "items": inner,
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "minimum": small,
                "maximum": small,
                "exclusiveMinimum": small,
                "exclusiveMaximum": small,
                "minLength": small,
                "maxLength": small,
                "minItems": small,
                "maxItems": small,
                "pattern": st.sampled_from(["^a", "b$", "a.c"]),
                "description": st.just("x"),
                "format": st.just("email"),
                # Left to jsonschema.
                "uniqueItems": st.just(True),
                "not": inner,
            },
        )

    return st.recursive(st.just({}) | st.just(True), extend, max_leaves=5)


@given(schemas(), values)
def test_only_what_jsonschema_accepts_is_accepted_without_it(schema: Any, value: Any) -> None:
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    is_known = not any(f'"{keyword}"' in json.dumps(schema) for keyword in ("uniqueItems", "not"))
    assert _accepts(schema, value) == is_valid or (is_valid and not is_known)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"type": "integer"}},
        },
        {
            "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
            "properties": {"x": {"type": "integer"}},
        },
    ],
)
def test_wrong_input_is_described(schema: dict[str, Any]) -> None:
    assert problem(schema, {"x": 1}) is None
    assert problem(schema, {"x": "one"}) == "x: 'one' is not of type 'integer'"


def test_a_nested_problem_says_where() -> None:
    schema = {"properties": {"edits": {"items": {"required": ["old"]}}}}
    assert problem(schema, {"edits": [{}]}) == "edits[0]: 'old' is a required property"


def test_a_long_value_is_not_repeated_whole() -> None:
    said = problem({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 10_000})
    assert said is not None
    assert len(said) < 400


def test_integers_are_those_of_the_dialect() -> None:
    for dialect, whole_float_is_integer in (
        ("https://json-schema.org/draft/2020-12/schema", True),
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/draft-04/schema#", False),
    ):
        schema = {"$schema": dialect, "properties": {"n": {"type": "integer"}}}
        assert (problem(schema, {"n": 1.0}) is None) == whole_float_is_integer, dialect


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"required": "x"},
        {"properties": {"x": {"$ref": "http://127.0.0.1:9/never-fetched"}}},
        {"properties": {"x": {"$ref": "#/$defs/missing"}}},
    ],
)
def test_an_unusable_schema_is_reported_once_and_not_enforced(
    schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    checker = InputChecker()
    tool = SimpleNamespace(input_schema=schema)
    with caplog.at_level(logging.WARNING):
        assert checker.problem(tool, "odd", {"x": 1}) is None
        assert checker.problem(tool, "odd", {"x": 2}) is None
    assert len(caplog.records) == 1
    assert "'odd' has an input schema that is not valid" in caplog.text


def test_a_schema_that_changes_is_followed() -> None:
    checker = InputChecker()
    tool = SimpleNamespace(input_schema={"required": ["a"]})
    assert checker.problem(tool, "t", {"a": 1}) is None
    tool.input_schema = {"required": ["b"]}
    assert checker.problem(tool, "t", {"a": 1}) == "'b' is a required property"
