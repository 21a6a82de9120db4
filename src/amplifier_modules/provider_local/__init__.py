"""provider-local: a language model inside this process, downloaded on first use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration("provider-local", "amplifier_modules.provider_local.config:LocalConfig")
config_schema = _config.schema


def missing_offline(config: Mapping[str, Any] | None, cache: str) -> list[str]:
    """What a session with this config would have to download, a phrase each.

    Args:
        config: As for `mount`.
        cache: The app's cache folder.

    Raises:
        ValueError: The config is invalid.
        ConfigurationError: The configured model is unknown.
    """
    from amplifier_modules.provider_local.provider import missing_weights

    return missing_weights(config, cache)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount the provider as ``local`` (Provider Contract, mount() Function).

    Cheap: weights are downloaded and the model is started with the first request.

    Returns:
        The cleanup function, which stops the model.

    Raises:
        ValueError: The config is invalid.
        ConfigurationError: The configured model is unknown.
    """
    from amplifier_modules.provider_local.provider import mount_provider

    return await mount_provider(coordinator, config)
