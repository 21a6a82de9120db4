"""tool-web: read pages of the web, and search it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_web.config import WebConfig

    return config_schema_of(WebConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount `web_fetch`, and `web_search` where `search` is configured; settings as in `WebConfig`.

    Returns:
        A function that closes connections still open.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_web.config import MODULE_ID, WebConfig
    from amplifier_modules.tool_web.tools import WEB_EVENTS, web_tools

    tools, close = web_tools(coordinator, parse_config(WebConfig, config, MODULE_ID))
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(WEB_EVENTS))
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
