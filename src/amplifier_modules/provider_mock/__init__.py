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

from typing import TYPE_CHECKING, Any

from amplifier_core.session_capabilities import WORKING_DIR
from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.provider_mock.config import MockConfig

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration("provider-mock", "amplifier_modules.provider_mock.config:MockConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: MockConfig) -> None:
    """Mount the provider as ``mock``; settings as in `MockConfig`.

    Raises:
        ValueError: The config or the script file is invalid.
    """
    from amplifier_modules.provider_mock.provider import create
    from amplifier_modules.provider_mock.script import read_replies

    replies = read_replies(settings, WORKING_DIR.of(coordinator))
    provider = create(settings, replies, coordinator)
    await coordinator.mount("providers", provider, name="mock")
