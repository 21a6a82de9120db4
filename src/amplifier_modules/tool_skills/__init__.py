"""tool-skills: instructions for kinds of tasks, loaded when the model needs them."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-skills", ".tool:SkillsConfig", ".tool")
tool_names = ("skill",)
config_schema = _module.config_schema
mount = _module.mount
