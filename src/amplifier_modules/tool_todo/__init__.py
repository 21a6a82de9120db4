"""tool-todo: the list of what is left to do, which the model keeps for itself and the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_todo.config import TodoConfig

    return config_schema_of(TodoConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount `todo`. Settings as in `TodoConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_todo.config import MODULE_ID, TodoConfig
    from amplifier_modules.tool_todo.tool import TODO_EVENTS, TodoTool

    settings = parse_config(TodoConfig, config, MODULE_ID)
    tool = TodoTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TODO_EVENTS))
    coordinator.register_capability("todo.items", tool.items)
    await coordinator.mount("tools", tool, name=tool.name)
