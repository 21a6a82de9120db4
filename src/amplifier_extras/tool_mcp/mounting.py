"""What tool-mcp mounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_extras.tool_mcp.config import MODULE_ID, McpConfig
from amplifier_extras.tool_mcp.hub import MCP_EVENTS, Hub


async def mount(coordinator: Any, settings: McpConfig) -> Callable[[], Awaitable[None]]:
    """Start the configured servers and mount their tools; settings as in `McpConfig`.

    Returns:
        A cleanup function that stops all servers.

    Raises:
        RuntimeError: The SDK is not installed, or a required server is not ready in time.
    """
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(MCP_EVENTS))
    hub = Hub(coordinator, settings)
    await hub.start()
    return hub.close
