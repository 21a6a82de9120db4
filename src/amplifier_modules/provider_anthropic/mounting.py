"""The module that provider-anthropic mounts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_modules._shared.http.client import Endpoint
from amplifier_modules._shared.pacing import find_pacing
from amplifier_modules._shared.providers.settings import from_environment
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.provider import AnthropicProvider
from amplifier_modules.provider_anthropic.request import NEWEST_VERSION
from amplifier_modules.provider_anthropic.transport import (
    API_KEY,
    AUTH_TOKEN,
    BASE_URL,
    BASE_URL_VARIABLE,
    PROVIDER,
    HTTPTransport,
    Transport,
)

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


def open_transport(config: AnthropicConfig, coordinator: Any = None) -> Transport | None:
    """The transport for the settings and the environment; None without credentials.

    Raises:
        ConfigurationError: The address or the key is invalid, or a package is missing.
    """
    if config.transport != "http":
        from amplifier_modules.provider_anthropic.sdk import CloudTransport

        return CloudTransport(config, PROVIDER)
    key, token = from_environment(config.api_key), from_environment(config.auth_token)
    if not (key or token):
        key, token = from_environment(None, API_KEY), from_environment(None, AUTH_TOKEN)
    if not (key or token):
        return None
    # A key takes precedence over a token, as in Anthropic's clients; sending both is refused.
    headers = {"x-api-key": key} if key else {"authorization": f"Bearer {token}"}
    base_url = from_environment(config.base_url, BASE_URL_VARIABLE) or BASE_URL
    endpoint = Endpoint(
        base_url.rstrip("/").removesuffix("/v1"),
        {**headers, "anthropic-version": config.api_version or NEWEST_VERSION},
        provider=PROVIDER,
        enter=find_pacing(coordinator),
        connect_timeout=config.connect_timeout,
        idle_timeout=config.idle_timeout,
        address_from="base_url" if config.base_url else BASE_URL_VARIABLE,
    )
    if config.client == "sdk":
        from amplifier_modules.provider_anthropic.sdk import SDKTransport

        return SDKTransport(endpoint, config, key, token)
    return HTTPTransport(endpoint)
