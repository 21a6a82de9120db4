"""tool-task: tasks for the plan's agents, each in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "tool"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.tool_task.config import TaskConfig

    return config_schema_of(TaskConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount `task`, unless the session is as deep as tasks may be given. Settings as in
    `TaskConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.tool_task.config import MODULE_ID, TaskConfig
    from amplifier_modules.tool_task.tool import TASK_EVENTS, TaskTool

    settings = parse_config(TaskConfig, config, MODULE_ID)
    depth = coordinator.get_capability("session.depth")
    if isinstance(depth, int) and depth >= settings.max_depth:
        return
    tool = TaskTool(coordinator, settings)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TASK_EVENTS))
    await coordinator.mount("tools", tool, name=tool.name)
