"""tool-todo: a to-do list that the model keeps for itself and the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_core.session_capabilities import TODO_ITEMS
from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_todo.config import TodoConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration("tool-todo", "amplifier_modules.tool_todo.config:TodoConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: TodoConfig) -> None:
    """Mount `todo`. Settings as in `TodoConfig`.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_modules.tool_todo.config import MODULE_ID
    from amplifier_modules.tool_todo.tool import TODO_EVENTS, TodoTool

    tool = TodoTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TODO_EVENTS))
    TODO_ITEMS.register(coordinator, tool.items)
    await coordinator.mount("tools", tool, name=tool.name)
