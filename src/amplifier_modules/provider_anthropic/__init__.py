"""Mount Claude as the provider `anthropic`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.provider_anthropic.config import AnthropicConfig

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration(
    "provider-anthropic", "amplifier_modules.provider_anthropic.config:AnthropicConfig"
)
config_schema = _config.schema

logger = logging.getLogger(__name__)


@_config.parsed
async def mount(
    coordinator: Any, settings: AnthropicConfig
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider; without credentials only warn and return None.

    Raises:
        ValueError: The config is invalid.
        ConfigurationError: The address or the key is invalid, or a package is missing.
    """
    from amplifier_modules._shared.providers.base import EVENTS
    from amplifier_modules.provider_anthropic.provider import AnthropicProvider
    from amplifier_modules.provider_anthropic.transport import open_transport

    transport = open_transport(settings)
    if transport is None:
        logger.warning(
            "provider-anthropic skipped: no API key. Set ANTHROPIC_API_KEY or "
            "ANTHROPIC_AUTH_TOKEN, or `api_key` in its config"
        )
        return None
    provider = AnthropicProvider(settings, transport, coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    coordinator.register_contributor(
        "observability.events", "provider-anthropic", lambda: list(EVENTS)
    )
    return provider.aclose
