"""context-persistent: the conversation in a file that resumed sessions continue from."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "context"

_module = ModuleDeclaration(
    __name__, "context-persistent", ".manager:PersistentContextConfig", ".manager"
)
config_schema = _module.config_schema
mount = _module.mount
