"""Tools whose input is checked before they run, and whose failures are results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.tool_input import InvalidInput, read_input


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
