"""The tools of one session."""

from __future__ import annotations

from typing import Any

from amplifier_modules.tool_filesystem.changing import EditFile, WriteFile
from amplifier_modules.tool_filesystem.config import FilesystemConfig
from amplifier_modules.tool_filesystem.looking import ListDirectory, ReadFile
from amplifier_modules.tool_filesystem.tool import FilesystemTool
from amplifier_modules.tool_filesystem.workspace import Workspace


def filesystem_tools(coordinator: Any, config: FilesystemConfig) -> list[FilesystemTool]:
    """Create the tools, which share the session's allowed folders."""
    workspace = Workspace(coordinator, config)
    kinds = (ReadFile, WriteFile, EditFile, ListDirectory)
    return [kind(workspace) for kind in kinds]
