"""Tools whose input is checked before they run, and whose failures are results.

Orchestrators check inputs too, but a tool may be called by one that does not; with this check a tool
can rely on the types its own schema declares. Supported are schemas of plain types, of lists of them, and
of lists of objects of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, cast

from amplifier_core.models import ToolResult

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


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """The JSON Schema of an object with these properties and no others.

    Args:
        *required: The names of those that must be there.
        **properties: The schema of each.
    """
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def parameter(type: str, description: str, **rules: Any) -> dict[str, Any]:
    """The JSON Schema of a parameter: its type, the rules for its values and its description."""
    return {"type": type, **rules, "description": description}


def read_input(schema: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """The values of `arguments` that `schema` declares; missing optional ones are omitted.

    Keys that start with an underscore belong to the caller of the tool and are ignored. A null
    counts as missing.

    Args:
        schema: JSON schema of an object.
        arguments: The input from the model.

    Raises:
        InvalidInput: A value is missing, has the wrong type, is below its minimum or is unknown.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"the input must be an object, not {type(arguments).__name__}")
    properties = cast("dict[str, dict[str, Any]]", schema["properties"])
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", arguments).items():
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


class CheckedTool(ABC):
    """A tool (Tool Contract): a failure is a result, never an exception.

    Attributes:
        input_schema: JSON schema of the input, flat and of plain types (see `tool_input`).
        input_aliases: Other names of its parameters, by alias (see `loop.aliases`). Orchestrators
            replace them before hooks see the input. `execute` rejects them: an orchestrator that
            does not replace them has passed the value through guards that may not know the alias.
        failures: Exceptions of `run` that `execute` turns into a failure.
    """

    name: ClassVar[str]
    input_schema: ClassVar[dict[str, Any]]
    input_aliases: ClassVar[Mapping[str, str]] = {}
    failures: ClassVar[tuple[type[Exception], ...]] = ()

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        return await self.run_checked(self.run, input)

    async def run_checked(
        self, run: Callable[[dict[str, Any]], Awaitable[ToolResult]], input: dict[str, Any]
    ) -> ToolResult:
        """Return the result of `run`, or of its failure, for an input that is checked first."""
        values: dict[str, Any] = {}
        try:
            values = read_input(self.input_schema, input)
            return await run(values)
        except InvalidInput as error:
            return failure(error)
        except self.failures as error:
            return failure(error, self.describe_failure(error, values))

    @abstractmethod
    async def run(self, values: dict[str, Any]) -> ToolResult:
        """Return the result for values that match the schema."""

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        """The message to the model for a failure."""
        return str(error)


def failure(error: Exception, message: str = "") -> ToolResult:
    """A failed result with the kind and message of an exception.

    An exception with `denies_call` marks a call that the tool may not carry out.
    """
    about: dict[str, Any] = {"message": message or str(error), "type": type(error).__name__}
    if getattr(error, "denies_call", False) is True:
        about["denied"] = True
    return ToolResult(success=False, error=about)
