"""hooks-otel: report to an OpenTelemetry collector what a session does and how long it takes."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "hook"

_module = ModuleDeclaration(
    __name__, "hooks-otel", ".config:OtelConfig", ".mounting", home="amplifier_extras"
)
config_schema = _module.config_schema
mount = _module.mount
