"""What tool-search mounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules.tool_search.config import SearchConfig
from amplifier_modules.tool_search.tools import search_tools


async def mount(coordinator: Any, settings: SearchConfig) -> Callable[[], Awaitable[None]]:
    """Mount `grep` and `glob`; settings as in `SearchConfig`.

    Returns:
        A cleanup function that ends running searches.

    Raises:
        ValueError: The config is invalid, or ripgrep is set but not installed.
        RuntimeError: Not a POSIX system.
    """
    tools, close = search_tools(coordinator, settings)
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
