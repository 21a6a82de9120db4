"""loop-events: the agent loop whose decisions are events that handlers may override."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "orchestrator"

_module = ModuleDeclaration(
    __name__, "loop-events", ".turn:EventsConfig", ".turn", home="amplifier_extras"
)
config_schema = _module.config_schema
mount = _module.mount
