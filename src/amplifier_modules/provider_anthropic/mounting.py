"""What provider-anthropic mounts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.provider import AnthropicProvider
from amplifier_modules.provider_anthropic.transport import open_transport

logger = logging.getLogger(__package__)


async def mount(
    coordinator: Any, settings: AnthropicConfig
) -> Callable[[], Awaitable[None]] | None:
    """Mount the provider; without credentials only warn and return None.

    Raises:
        ConfigurationError: The address or the key is invalid, or a package is missing.
    """
    transport = open_transport(settings, coordinator)
    if transport is None:
        logger.warning(
            "provider-anthropic skipped: no API key. Set ANTHROPIC_API_KEY or "
            "ANTHROPIC_AUTH_TOKEN, or `api_key` in its config"
        )
        return None
    provider = AnthropicProvider(settings, transport, coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
