"""loop-basic: the basic agent loop, one complete answer at a time."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "orchestrator"

_module = ModuleDeclaration(
    __name__, "loop-basic", "amplifier_modules._shared.loop.config:LoopConfig", ".orchestrator"
)
config_schema = _module.config_schema
mount = _module.mount
