"""hooks-logging: write the session's events to `events.jsonl`."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-logging", ".log:LoggingConfig", ".log")
config_schema = _module.config_schema
mount = _module.mount
on_session_ready = _module.on_session_ready
