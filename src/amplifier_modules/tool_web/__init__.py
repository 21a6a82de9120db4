"""tool-web: read and search web pages."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-web", ".config:WebConfig", ".mounting")
tool_names = ("web_fetch",)
config_schema = _module.config_schema
mount = _module.mount
