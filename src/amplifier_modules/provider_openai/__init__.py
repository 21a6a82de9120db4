"""provider-openai: OpenAI and servers with a compatible Chat Completions API."""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "provider"

_module = ModuleDeclaration(__name__, "provider-openai", ".config:OpenAIConfig", ".provider")
config_schema = _module.config_schema
mount = _module.mount
