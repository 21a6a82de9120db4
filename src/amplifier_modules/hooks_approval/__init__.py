"""hooks-approval: allow, ask about or deny tool calls by rules."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(__name__, "hooks-approval", ".config:ApprovalConfig", ".hook")
config_schema = _module.config_schema
mount = _module.mount
