"""What tool-web mounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules.tool_web.config import MODULE_ID, WebConfig
from amplifier_modules.tool_web.tools import WEB_EVENTS, web_tools


async def mount(coordinator: Any, settings: WebConfig) -> Callable[[], Awaitable[None]]:
    """Mount `web_fetch`, and `web_search` where `search` is configured; settings as in `WebConfig`.

    Returns:
        A cleanup function that closes open connections.
    """
    tools, close = web_tools(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(WEB_EVENTS))
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
