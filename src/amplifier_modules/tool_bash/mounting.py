"""The module that tool-bash mounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules._shared.process.sandbox import SANDBOX_DENIED
from amplifier_modules.tool_bash.background import (
    BACKGROUND_END,
    BACKGROUND_START,
    TOOL_OUTPUT,
    Background,
    Shell,
)
from amplifier_modules.tool_bash.config import MODULE_ID, BashConfig
from amplifier_modules.tool_bash.tool import BashKillTool, BashOutputTool, BashTool
from amplifier_support.session_capabilities import START_BACKGROUND, tool_sandbox, tool_working_dir


def commands_of_chat(background: Background) -> list[dict[str, Any]]:
    """The slash commands; only a chat asks for them."""
    from amplifier_modules.tool_bash.bashes import chat_commands

    return chat_commands(background)


async def mount(coordinator: Any, settings: BashConfig) -> Callable[[], Awaitable[None]]:
    """Mount `bash` and, unless they are left out, `bash_output` and `bash_kill`.

    Args:
        coordinator: The session's coordinator.
        settings: Settings as in `BashConfig`.

    Returns:
        A cleanup function that kills processes still running.

    Raises:
        RuntimeError: The system is not a POSIX one, or has no shell.
    """
    shell = Shell(coordinator, settings)
    background = Background(coordinator, shell, settings) if settings.max_background else None
    tools: list[Any] = [BashTool(shell, settings, background)]
    events = [TOOL_OUTPUT, SANDBOX_DENIED]
    if background is not None:
        tools += [BashOutputTool(background), BashKillTool(background)]
        events += [BACKGROUND_START, BACKGROUND_END]
        coordinator.register_contributor(
            "chat.commands", MODULE_ID, lambda: commands_of_chat(background)
        )
        START_BACKGROUND.register(coordinator, background.start_own)
    for tool in tools:
        await coordinator.mount("tools", tool, name=tool.name)
    tool_working_dir("bash").register(coordinator, lambda: shell.working_dir)
    tool_sandbox("bash").register(coordinator, lambda: shell.sandbox)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(events))

    async def close() -> None:
        if background is not None:
            await background.close()
        await shell.close()

    return close
