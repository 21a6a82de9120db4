"""What the tools have in common: input that is checked, and failures that are results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from amplifier_core.models import ToolResult
from amplifier_modules._shared.paths import PathError
from amplifier_modules._shared.tool_input import InvalidInput, read_input
from amplifier_modules.tool_filesystem.errors import FileProblem, os_problem
from amplifier_modules.tool_filesystem.workspace import Workspace

PATH = {"type": "string", "description": "Path, absolute or relative to the working directory"}


class FilesystemTool(ABC):
    """A tool on files (Tool Contract): a failure is a result, never an exception."""

    name: ClassVar[str]
    description: ClassVar[str]
    input_schema: ClassVar[dict[str, Any]]

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def get_schema(self) -> dict[str, Any]:
        """JSON schema of the input."""
        return self.input_schema

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool; `error` of a failure has `message` and `type`."""
        path = "."
        try:
            values = read_input(self.input_schema, input)
            path = values.get("path", path)
            return await self.run(values)
        except FileProblem as error:
            return _failure(error, f"{path!r}: {error}")
        except (InvalidInput, PathError) as error:
            return _failure(error, str(error))
        except OSError as error:
            return _failure(error, os_problem(error, path))

    @abstractmethod
    async def run(self, values: dict[str, Any]) -> ToolResult:
        """What the model gets. Raises what `execute` turns into a failure."""


def _failure(error: Exception, message: str) -> ToolResult:
    return ToolResult(success=False, error={"message": message, "type": type(error).__name__})
