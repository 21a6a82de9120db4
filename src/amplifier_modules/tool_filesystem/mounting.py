"""What tool-filesystem mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.tool_filesystem.config import FilesystemConfig
from amplifier_modules.tool_filesystem.read_tools import ListDirectory, ReadFile
from amplifier_modules.tool_filesystem.workspace import Workspace
from amplifier_modules.tool_filesystem.write_tools import EditFile, WriteFile


async def mount(coordinator: Any, settings: FilesystemConfig) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.
    """
    # They share the session's allowed folders.
    workspace = Workspace(coordinator, settings)
    for kind in (ReadFile, WriteFile, EditFile, ListDirectory):
        await coordinator.mount("tools", kind(workspace), name=kind.name)
