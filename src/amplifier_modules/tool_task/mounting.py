"""What tool-task mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.tool_task.config import MODULE_ID, TaskConfig
from amplifier_modules.tool_task.tool import TASK_EVENTS, TaskTool
from amplifier_support.session_capabilities import DEPTH


async def mount(coordinator: Any, settings: TaskConfig) -> None:
    """Mount `task`, unless the session is as deep as tasks may be given. Settings as in
    `TaskConfig`.
    """
    # Before it decides not to mount a tool: a module that does nothing at all is reported as a fault.
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: list(TASK_EVENTS))
    depth = DEPTH.of(coordinator)
    if isinstance(depth, int) and depth >= settings.max_depth:
        return
    tool = TaskTool(coordinator, settings)
    await coordinator.mount("tools", tool, name=tool.name)
