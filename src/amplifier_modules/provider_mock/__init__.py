"""provider-mock: a provider that plays a script, for trying out plans and testing modules.

    providers:
      - module: provider-mock
        config:
          replies:
            - tool_calls: [{name: read_file, input: {path: notes.txt}}]
            - text: The file says hello.

Without `replies` it repeats what it was told. Every setting is described in `MockConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "provider"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.provider_mock.config import MockConfig

    return config_schema_of(MockConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount the provider as ``mock``; settings as in `MockConfig`.

    Raises:
        ValueError: The config or the script file is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.provider_mock.config import MODULE_ID, MockConfig
    from amplifier_modules.provider_mock.provider import create
    from amplifier_modules.provider_mock.script import read_replies

    settings = parse_config(MockConfig, config, MODULE_ID)
    replies = read_replies(settings, coordinator.get_capability("session.working_dir"))
    provider = create(settings, replies, coordinator)
    await coordinator.mount("providers", provider, name="mock")
