"""tool-mcp: the tools, resources and prompts of MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_mcp.config import McpConfig

    return config_schema_of(McpConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Start the configured servers and mount their tools; settings as in `McpConfig`.

    Returns:
        A function that ends all servers.

    Raises:
        ValueError: The config is not valid.
        RuntimeError: The SDK is not installed, or a required server is not ready in time.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_mcp.config import MODULE_ID, McpConfig
    from amplifier_modules.tool_mcp.hub import MCP_EVENTS, Hub

    settings = parse_config(McpConfig, config, MODULE_ID)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(MCP_EVENTS))
    hub = Hub(coordinator, settings)
    await hub.start()
    return hub.close
