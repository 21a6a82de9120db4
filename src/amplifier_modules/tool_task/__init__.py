"""tool-task: tasks for the plan's agents, each in a session of its own."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-task", ".tool:TaskConfig", ".tool")
tool_names = ("task",)
config_schema = _module.config_schema
mount = _module.mount
