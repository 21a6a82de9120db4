"""tool-filesystem: read, write, edit and list files inside granted folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_filesystem.config import FilesystemConfig

    return config_schema_of(FilesystemConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount `read_file`, `write_file`, `edit_file` and `list_directory`.

    Settings as in `FilesystemConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import ARTIFACT_READ, ARTIFACT_WRITE
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_filesystem.config import MODULE_ID, FilesystemConfig
    from amplifier_modules.tool_filesystem.tools import filesystem_tools

    settings = parse_config(FilesystemConfig, config, MODULE_ID)
    coordinator.register_contributor(
        "observability.events", MODULE_ID, lambda: [ARTIFACT_READ, ARTIFACT_WRITE]
    )
    for tool in filesystem_tools(coordinator, settings):
        await coordinator.mount("tools", tool, name=tool.name)
