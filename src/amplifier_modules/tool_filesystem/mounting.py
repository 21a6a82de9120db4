"""What tool-filesystem mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.tool_filesystem.config import FilesystemConfig
from amplifier_modules.tool_filesystem.read_tools import ListDirectory, ReadFile
from amplifier_modules.tool_filesystem.workspace import Workspace
from amplifier_modules.tool_filesystem.write_tools import ChangingTool, EditFile, WriteFile
from amplifier_support.session_capabilities import tool_check


async def mount(coordinator: Any, settings: FilesystemConfig) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.
    """
    # They share the session's allowed folders.
    workspace = Workspace(coordinator, settings)
    for kind in (ReadFile, WriteFile, EditFile, ListDirectory):
        tool = kind(workspace)
        await coordinator.mount("tools", tool, name=kind.name)
        if isinstance(tool, ChangingTool):
            tool_check(kind.name).register(coordinator, tool.check)
