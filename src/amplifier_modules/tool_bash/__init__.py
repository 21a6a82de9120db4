"""tool-bash: run shell commands that cannot run away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_bash.config import BashConfig

    return config_schema_of(BashConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount `bash` and, unless they are left out, `bash_output` and `bash_kill`.

    Args:
        coordinator: Where they are mounted.
        config: Settings as in `BashConfig`.

    Returns:
        A function that kills what commands left running.

    Raises:
        ValueError: The config is not valid.
        RuntimeError: The system is not a POSIX one, or has no shell.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_bash.background import BACKGROUND_END, BACKGROUND_START, Background
    from amplifier_modules.tool_bash.config import MODULE_ID, BashConfig
    from amplifier_modules.tool_bash.shell import Shell
    from amplifier_modules.tool_bash.telling import TOOL_OUTPUT
    from amplifier_modules.tool_bash.tool import BashKillTool, BashOutputTool, BashTool

    settings = parse_config(BashConfig, config, MODULE_ID)
    shell = Shell(coordinator, settings)
    background = Background(coordinator, shell, settings) if settings.max_background else None
    tools: list[Any] = [BashTool(shell, settings, background)]
    events = [TOOL_OUTPUT]
    if background is not None:
        tools += [BashOutputTool(background), BashKillTool(background)]
        events += [BACKGROUND_START, BACKGROUND_END]
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    coordinator.register_capability("bash.working_dir", lambda: shell.working_dir)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(events))

    async def close() -> None:
        if background is not None:
            await background.close()
        await shell.close()

    return close
