"""tool-mcp: the tools, resources and prompts of MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_mcp.config import McpConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration("tool-mcp", "amplifier_modules.tool_mcp.config:McpConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: McpConfig) -> Callable[[], Awaitable[None]]:
    """Start the configured servers and mount their tools; settings as in `McpConfig`.

    Returns:
        A cleanup function that stops all servers.

    Raises:
        ValueError: The config is invalid.
        RuntimeError: The SDK is not installed, or a required server is not ready in time.
    """
    from amplifier_modules.tool_mcp.config import MODULE_ID
    from amplifier_modules.tool_mcp.hub import MCP_EVENTS, Hub

    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(MCP_EVENTS))
    hub = Hub(coordinator, settings)
    await hub.start()
    return hub.close
