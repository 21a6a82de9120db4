"""tool-task: tasks for the plan's agents, each in a session of its own."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(
    __name__,
    "tool-task",
    "amplifier_modules.tool_task.config:TaskConfig",
    "amplifier_modules.tool_task.mounting",
)
config_schema = _module.config_schema
mount = _module.mount
