"""provider-anthropic: Claude models, through the API of Anthropic."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "provider"

_module = ModuleDeclaration(__name__, "provider-anthropic", ".config:AnthropicConfig", ".provider")
config_schema = _module.config_schema
mount = _module.mount
