"""provider-local: a language model inside this process, fetched on first use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration("provider-local", "amplifier_modules.provider_local.config:LocalConfig")
config_schema = _config.schema


def missing_offline(config: Mapping[str, Any] | None, cache: str) -> list[str]:
    """What a session with this config would fetch and is not on this machine, a phrase each.

    Args:
        config: As for `mount`.
        cache: The app's folder for what can be fetched again.

    Raises:
        ValueError: The config is not valid.
        ConfigurationError: There is no model of the config's name.
    """
    from amplifier_modules.provider_local.provider import missing_weights

    return missing_weights(config, cache)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mounts the provider as ``local`` (Provider Contract, mount() Function).

    Costs next to nothing: weights are fetched and the model is started with the first request.

    Returns:
        The cleanup, which stops the model.

    Raises:
        ValueError: The config is not valid.
        ConfigurationError: There is no model of the config's name.
    """
    from amplifier_modules.provider_local.provider import mount_provider

    return await mount_provider(coordinator, config)
