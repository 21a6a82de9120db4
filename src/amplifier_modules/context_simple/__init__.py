"""context-simple: the conversation in memory, compacted for requests but never changed."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration
from amplifier_modules.context_simple.manager import SimpleContextManager

__all__ = ["SimpleContextManager", "config_schema", "mount"]

__amplifier_module_type__ = "context"

_module = ModuleDeclaration(
    __name__, "context-simple", "amplifier_modules._shared.context.config:ContextConfig", ".manager"
)
config_schema = _module.config_schema
mount = _module.mount
