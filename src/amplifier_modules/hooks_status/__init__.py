"""hooks-status: add the time, the directory and the state of git to each model request."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-status", ".hook:StatusConfig", ".hook")
config_schema = _module.config_schema
mount = _module.mount
