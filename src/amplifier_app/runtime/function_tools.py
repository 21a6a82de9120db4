"""Functions of a Python program, offered to the model as tools.

A tool has the name of its function. The parameters and their types are its input; the docstring, with `Args:` in Google's
style, describes both.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from amplifier_app.base.errors import UsageError
from amplifier_app.runtime.session import ToolSelection
from amplifier_core.models import ToolResult

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""The names of tools that every provider takes."""
_SECTION = re.compile(r"^(\w+):[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^ +(\w+)(?: \([^)\n]*\))?: (.*(?:\n {5,}.*)*)", re.MULTILINE)


class FunctionTool:
    """A function as a tool.

    Args:
        function: The function, async or not. One that is not runs in a thread of its own.

    Raises:
        UsageError: It cannot be a tool.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.name: str = getattr(function, "__name__", "")
        if _NAME.fullmatch(self.name) is None:
            raise UsageError(
                f"the function {function!r} cannot be a tool: its name is {self.name!r}",
                hint="Define it with def and a name of at most 64 letters, digits and '_'.",
            )

        @wraps(function)
        def bind(*values: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return values, named

        try:
            parameters = inspect.signature(function).parameters.values()
            self._adapter = TypeAdapter[Any](cast("Any", bind))
            self.input_schema = self._adapter.json_schema(schema_generator=_WithoutTitles)
        except (PydanticUserError, NameError, TypeError, ValueError) as error:
            raise UsageError(
                f"the function {self.name!r} cannot be a tool: {error}",
                hint="Annotate its parameters with types that JSON can express.",
            ) from error
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UsageError(
                    f"the function {self.name!r} cannot be a tool: {parameter} has no name that the model could give"
                )
        self.description, arguments = _read_docstring(inspect.getdoc(function) or "")
        for name, field in self.input_schema.get("properties", {}).items():
            if name in arguments:
                field.setdefault("description", arguments[name])

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Call the function with the input, and return what it returned: text, or data as JSON."""
        try:
            values, named = self._adapter.validate_json(json.dumps(input))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                for problem in error.errors()
            )
            return _failed(f"the input is invalid: {problems}")

        def call() -> Any:
            try:
                return self._function(*values, **named)
            except StopIteration as error:  # cannot leave a thread
                raise RuntimeError("the function raised StopIteration") from error

        try:
            is_async = inspect.iscoroutinefunction(self._function)
            value = call() if is_async else await asyncio.to_thread(call)
            if inspect.isawaitable(value):
                value = await value
            if not isinstance(value, str):
                value = TypeAdapter[Any](type(value)).dump_json(value).decode()
            return ToolResult(output=value)
        # The function is foreign code; whatever it raises becomes a failed call that the model sees.
        except Exception as error:
            return _failed(f"{type(error).__name__}: {error}")


class FunctionTools:
    """Mounts functions as tools (see `Adjustment` in `amplifier_app.runtime.session`).

    Args:
        functions: The functions.
        selection: The tools of the plan to keep; None for all.

    Attributes:
        tools: The tools, by name.

    Raises:
        UsageError: A function cannot be a tool, or two have the same name.
    """

    def __init__(
        self, functions: Sequence[Callable[..., Any]], selection: ToolSelection | None = None
    ) -> None:
        self.tools: dict[str, FunctionTool] = {}
        for tool in map(FunctionTool, functions):
            if tool.name in self.tools:
                raise UsageError(f"two functions have the name {tool.name!r}")
            self.tools[tool.name] = tool
        self._selection = selection

    def check(self, coordinator: Any) -> None:
        """Check that the plan has the selected tools, and none with the name of a function.

        Raises:
            UsageError: It is otherwise.
        """
        if self._selection is not None:
            self._selection.check(coordinator)
        for name in self.tools:
            if name in coordinator.get("tools"):
                raise UsageError(
                    f"the plan has a tool {name!r}, like one of the functions",
                    hint="Rename the function, or leave out the tool.",
                )

    def apply(self, coordinator: Any) -> None:
        """Mount the functions, and unmount the tools that were not selected."""
        if self._selection is not None:
            self._selection.apply(coordinator)
        for tool in self.tools.values():
            coordinator.mount("tools", tool, name=tool.name)


def _failed(message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message})


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the descriptions of the function and of its arguments in a docstring."""
    before, *sections = _SECTION.split(text)
    arguments = dict(zip(sections[::2], sections[1::2], strict=True)).get("Args", "")
    described = {name: " ".join(words.split()) for name, words in _ARGUMENT.findall(arguments)}
    return before.strip(), described


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
