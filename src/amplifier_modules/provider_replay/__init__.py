"""provider-replay: keeps what a run and its model say to each other, and says it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

__amplifier_module_type__ = "provider"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.provider_replay.config import ReplayConfig

    return config_schema_of(ReplayConfig)


async def mount(
    coordinator: Any, config: Mapping[str, Any] | None = None
) -> Callable[[], Awaitable[None]] | None:
    """Records the providers mounted so far, or mounts those of a recording in their place.

    Returns:
        The cleanup; None, with a warning in the log, when there is nothing to record or replay.

    Raises:
        ValueError: The config is not valid, or the recording cannot be written or read.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.provider_replay.config import MODULE_ID, ReplayConfig
    from amplifier_modules.provider_replay.mounting import mount_provider

    return await mount_provider(coordinator, parse_config(ReplayConfig, config, MODULE_ID))


async def on_session_ready(coordinator: Any) -> None:
    """Does the same with providers that were mounted later."""
    from amplifier_modules.provider_replay.mounting import take_over

    await take_over(coordinator)
