"""The base of the tools: a workspace, and error messages for the model."""

from __future__ import annotations

from typing import Any, ClassVar

from amplifier_modules._shared.files.roots import PathError
from amplifier_modules._shared.module.checked_tool import CheckedTool
from amplifier_modules.tool_filesystem.errors import FileProblem, os_problem
from amplifier_modules.tool_filesystem.workspace import Workspace

PATH = {"type": "string", "description": "Path, absolute or relative to the working directory"}


FILE_ALIASES = {"path": "file_path"}
"""`file_path` is the parameter's name in published tools of the same names."""


class FilesystemTool(CheckedTool):
    """A tool that works on files."""

    description: ClassVar[str]
    failures = (FileProblem, PathError, OSError)

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        path = values.get("file_path") or values.get("path", ".")
        if isinstance(error, FileProblem):
            return f"{path!r}: {error}"
        return os_problem(error, path) if isinstance(error, OSError) else str(error)
