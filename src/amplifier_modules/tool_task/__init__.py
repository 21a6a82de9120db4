"""tool-task: tasks for the plan's agents, each in a session of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_core.session_capabilities import DEPTH
from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.tool_task.config import TaskConfig

__amplifier_module_type__ = "tool"

_config = ConfigDeclaration("tool-task", "amplifier_modules.tool_task.config:TaskConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: TaskConfig) -> None:
    """Mount `task`, unless the session is as deep as tasks may be given. Settings as in
    `TaskConfig`.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_modules.tool_task.config import MODULE_ID
    from amplifier_modules.tool_task.tool import TASK_EVENTS, TaskTool

    depth = DEPTH.of(coordinator)
    if isinstance(depth, int) and depth >= settings.max_depth:
        return
    tool = TaskTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TASK_EVENTS))
    await coordinator.mount("tools", tool, name=tool.name)
