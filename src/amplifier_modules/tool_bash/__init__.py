"""tool-bash: run shell commands that cannot run away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.config_schema import config_schema_of
    from amplifier_modules.tool_bash.config import BashConfig

    return config_schema_of(BashConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount the tool `bash`; settings as in `BashConfig`.

    Returns:
        A function that kills what commands left running.

    Raises:
        ValueError: The config is not valid.
        RuntimeError: The system is not a POSIX one, or has no shell.
    """
    from amplifier_modules._shared.config import parse_config
    from amplifier_modules.tool_bash.config import MODULE_ID, BashConfig
    from amplifier_modules.tool_bash.tool import BashTool

    tool = BashTool(coordinator, parse_config(BashConfig, config, MODULE_ID))
    await coordinator.mount("tools", tool, name=tool.name)
    return tool.close
