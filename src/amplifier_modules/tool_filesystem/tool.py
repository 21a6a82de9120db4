"""What the tools have in common: a workspace, and what the model is told of failures."""

from __future__ import annotations

from typing import Any, ClassVar

from amplifier_modules._shared.files.roots import PathError
from amplifier_modules._shared.module.checked_tool import CheckedTool
from amplifier_modules.tool_filesystem.errors import FileProblem, os_problem
from amplifier_modules.tool_filesystem.workspace import Workspace

PATH = {"type": "string", "description": "Path, absolute or relative to the working directory"}


FILE_ALIASES = {"path": "file_path"}
"""`file_path` is what published tools of the same names call a file."""


class FilesystemTool(CheckedTool):
    """A tool on files."""

    description: ClassVar[str]
    failures = (FileProblem, PathError, OSError)

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        path = values.get("file_path") or values.get("path", ".")
        if isinstance(error, FileProblem):
            return f"{path!r}: {error}"
        return os_problem(error, path) if isinstance(error, OSError) else str(error)
