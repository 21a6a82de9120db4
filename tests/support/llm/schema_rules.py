"""The schemas of answers that the vendors enforce, and how they refuse others."""

from collections.abc import Iterator
from typing import Any

from tests.support.llm.rules import Rejected

_UNSUPPORTED = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
]


def check_anthropic_format(form: Any) -> None:
    """Raises `Rejected` for an `output_config.format` that the Messages API would not take."""
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        raise Rejected("output_config.format: Input should be a JSON schema format")
    for schema in _schemas(form["schema"]):
        for key in _UNSUPPORTED:
            if key in schema:
                kind = schema.get("type")
                raise Rejected(
                    f"output_config.format.schema: For '{kind}' type, property '{key}' is not supported"
                )
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            raise Rejected(
                "output_config.format.schema: For 'object' type, 'additionalProperties' must be "
                "explicitly set to false"
            )


def check_openai_format(described: Any, param: str) -> None:
    """Raises `Rejected` for a described schema that OpenAI would not take."""
    for key in ("name", "schema"):
        if key not in described:
            raise Rejected(
                f"Missing required parameter: '{param}.{key}'.",
                param=f"{param}.{key}",
                code="missing_required_parameter",
            )
    about = f"Invalid schema for response_format '{described['name']}': "
    schema = described["schema"]
    if schema.get("type") != "object":
        kind = schema.get("type")
        raise Rejected(
            f"{about}schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.",
            param=param,
        )
    for one in _schemas(schema) if described.get("strict") else ():
        if "properties" not in one:
            continue
        if one.get("additionalProperties") is not False:
            text = "'additionalProperties' is required to be supplied and to be false."
            raise Rejected(f"{about}In context=(), {text}", param=param)
        if {*one.get("properties", {})} != {*one.get("required", [])}:
            text = (
                "'required' is required to be supplied and to be an array including every "
                "key in properties."
            )
            raise Rejected(f"{about}In context=(), {text}", param=param)


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        for one in value.values():
            yield from _schemas(one)
    elif isinstance(value, list):
        for one in value:
            yield from _schemas(one)
