"""provider-openai: OpenAI and servers with a compatible Chat Completions API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration(
    "provider-openai", "amplifier_modules.provider_openai.config:OpenAIConfig"
)
config_schema = _config.schema


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider as ``openai`` (Provider Contract, mount() Function).

    Returns:
        The cleanup function; None, with a logged warning, if there is neither a key nor the address
        of a server that needs none.

    Raises:
        ValueError: The config is invalid.
        ConfigurationError: The address or the key is invalid.
    """
    from amplifier_modules.provider_openai.provider import mount_provider

    return await mount_provider(coordinator, config)
