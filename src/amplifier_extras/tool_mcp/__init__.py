"""tool-mcp: the tools, resources and prompts of MCP servers."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "tool"

_module = ModuleDeclaration(
    __name__, "tool-mcp", ".config:McpConfig", ".hub", home="amplifier_extras"
)
config_schema = _module.config_schema
mount = _module.mount
