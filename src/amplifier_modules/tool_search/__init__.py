"""tool-search: find text in files, and files by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_search.config import SearchConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration("tool-search", "amplifier_modules.tool_search.config:SearchConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: SearchConfig) -> Callable[[], Awaitable[None]]:
    """Mount `grep` and `glob`; settings as in `SearchConfig`.

    Returns:
        A cleanup function that ends running searches.

    Raises:
        ValueError: The config is invalid, or ripgrep is set but not installed.
        RuntimeError: Not a POSIX system.
    """
    from amplifier_modules.tool_search.tools import search_tools

    tools, close = search_tools(coordinator, settings)
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    return close
