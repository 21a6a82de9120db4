"""tool-bash: run shell commands, with time and output limits."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-bash", ".shell:BashConfig", ".tool")
tool_names = ("bash", "bash_output", "bash_kill")
config_schema = _module.config_schema
mount = _module.mount
