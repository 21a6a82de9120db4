"""hooks-context-files: give the model the instructions in AGENTS.md and similar files."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-context-files", ".hook:ContextFilesConfig", ".hook")
config_schema = _module.config_schema
mount = _module.mount
