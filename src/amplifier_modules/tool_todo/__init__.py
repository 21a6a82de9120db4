"""tool-todo: a to-do list that the model keeps for itself and the user."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-todo", ".tool:TodoConfig", ".tool")
tool_names = ("todo",)
config_schema = _module.config_schema
mount = _module.mount
