"""tool-search: find text in files, and files by name."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(__name__, "tool-search", ".tools:SearchConfig", ".tools")
tool_names = ("grep", "glob")
config_schema = _module.config_schema
mount = _module.mount
