"""tool-search: find text in files, and files by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_search.config import SearchConfig

    return config_schema_of(SearchConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount `grep` and `glob`; settings as in `SearchConfig`.

    Returns:
        A function that ends searches still running.

    Raises:
        ValueError: The config is not valid, or asks for a ripgrep that is not there.
        RuntimeError: The system is not a POSIX one.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_search.config import MODULE_ID, SearchConfig
    from amplifier_modules.tool_search.tools import search_tools

    tools, close = search_tools(coordinator, parse_config(SearchConfig, config, MODULE_ID))
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
