"""Mount the two tools; their code is imported with the first call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules._shared.module.declaration import LazyTool
from amplifier_modules.tool_web.config import FETCH, MODULE_ID, SEARCH, WEB_EVENTS, WebConfig
from amplifier_support.session_capabilities import tool_check


async def mount(coordinator: Any, settings: WebConfig) -> Callable[[], Awaitable[None]]:
    """Mount `web_fetch`, and `web_search` where `search` is configured; settings as in `WebConfig`.

    Returns:
        A cleanup function that closes open connections.
    """
    tools: dict[str, Any] = {}
    closing: list[Callable[[], Awaitable[None]]] = []

    def create(name: str) -> Any:
        if not tools:
            from amplifier_modules.tool_web.tools import web_tools

            created, close = web_tools(coordinator, settings)
            tools.update((tool.name, tool) for tool in created)
            closing.append(close)
        return tools[name]

    async def close() -> None:
        for each in closing:
            await each()

    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(WEB_EVENTS))
    for offer in (FETCH, SEARCH) if settings.search is not None else (FETCH,):
        tool = LazyTool(offer, create)
        await coordinator.mount("tools", tool, name=offer.name)
        tool_check(offer.name).register(coordinator, tool.check)
    return close
