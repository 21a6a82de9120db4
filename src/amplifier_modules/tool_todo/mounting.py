"""What tool-todo mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.tool_todo.config import MODULE_ID, TodoConfig
from amplifier_modules.tool_todo.tool import TODO_EVENTS, TodoTool
from amplifier_support.session_capabilities import TODO_ITEMS


async def mount(coordinator: Any, settings: TodoConfig) -> None:
    """Mount `todo`. Settings as in `TodoConfig`."""
    tool = TodoTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TODO_EVENTS))
    TODO_ITEMS.register(coordinator, tool.items)
    await coordinator.mount("tools", tool, name=tool.name)
