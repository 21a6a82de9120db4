"""provider-replay: record the model requests and responses of a run, and replay them."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "provider"

_module = ModuleDeclaration(
    __name__, "provider-replay", ".player:ReplayConfig", ".player", home="amplifier_extras"
)
config_schema = _module.config_schema
mount = _module.mount
on_session_ready = _module.on_session_ready
