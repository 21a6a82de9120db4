"""What tool-filesystem mounts."""

from __future__ import annotations

from typing import Any

from amplifier_core.events import ARTIFACT_READ, ARTIFACT_WRITE
from amplifier_modules.tool_filesystem.config import MODULE_ID, FilesystemConfig
from amplifier_modules.tool_filesystem.tools import filesystem_tools


async def mount(coordinator: Any, settings: FilesystemConfig) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.
    """
    coordinator.register_contributor(
        "observability.events", MODULE_ID, lambda: [ARTIFACT_READ, ARTIFACT_WRITE]
    )
    for tool in filesystem_tools(coordinator, settings):
        await coordinator.mount("tools", tool, name=tool.name)
