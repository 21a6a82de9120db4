"""loop-streaming: the agent loop that shows answers as they are generated."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "orchestrator"

_module = ModuleDeclaration(
    __name__, "loop-streaming", "amplifier_modules._shared.loop.config:LoopConfig", ".orchestrator"
)
config_schema = _module.config_schema
mount = _module.mount
