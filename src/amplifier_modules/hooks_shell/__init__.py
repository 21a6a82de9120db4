"""hooks-shell: run the user's commands on events, and let them decide."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-shell", ".hook:ShellConfig", ".hook")
config_schema = _module.config_schema
mount = _module.mount
on_session_ready = _module.on_session_ready
