"""provider-mock: a provider that plays a script, for trying out plans and testing modules.

    providers:
      - module: provider-mock
        config:
          replies:
            - tool_calls: [{name: read_file, input: {path: notes.txt}}]
            - text: The file says hello.

Without `replies` it repeats its input. Every setting is described in `MockConfig`.
"""

from __future__ import annotations

from amplifier_modules._shared.module.declaration import ModuleDeclaration

__amplifier_module_type__ = "provider"

_module = ModuleDeclaration(__name__, "provider-mock", ".provider:MockConfig", ".provider")
config_schema = _module.config_schema
mount = _module.mount
