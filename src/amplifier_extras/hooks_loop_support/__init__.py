"""hooks-loop-support: apply `session.budget` and `session.fallbacks` to an orchestrator that does not."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(
    __name__,
    "hooks-loop-support",
    ".loop:LoopSupportConfig",
    ".loop",
    home="amplifier_extras",
)
config_schema = _module.config_schema
mount = _module.mount
