"""tool-web: read and search web pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_web.config import WebConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration("tool-web", "amplifier_modules.tool_web.config:WebConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: WebConfig) -> Callable[[], Awaitable[None]]:
    """Mount `web_fetch`, and `web_search` where `search` is configured; settings as in `WebConfig`.

    Returns:
        A cleanup function that closes open connections.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_modules.tool_web.config import MODULE_ID
    from amplifier_modules.tool_web.tools import WEB_EVENTS, web_tools

    tools, close = web_tools(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(WEB_EVENTS))
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
