"""tool-filesystem: read, write, edit and list files inside allowed folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_filesystem.config import FilesystemConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration(
    "tool-filesystem", "amplifier_modules.tool_filesystem.config:FilesystemConfig"
)
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: FilesystemConfig) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import ARTIFACT_READ, ARTIFACT_WRITE
    from amplifier_modules.tool_filesystem.config import MODULE_ID
    from amplifier_modules.tool_filesystem.tools import filesystem_tools

    coordinator.register_contributor(
        "observability.events", MODULE_ID, lambda: [ARTIFACT_READ, ARTIFACT_WRITE]
    )
    for tool in filesystem_tools(coordinator, settings):
        await coordinator.mount("tools", tool, name=tool.name)
