"""provider-replay: record the model requests and responses of a run, and replay them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.provider_replay.config import ReplayConfig

__amplifier_module_type__ = "provider"

_config = ConfigDeclaration(
    "provider-replay", "amplifier_modules.provider_replay.config:ReplayConfig"
)
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: ReplayConfig) -> Callable[[], Awaitable[None]] | None:
    """Records the providers mounted so far, or mounts those of a recording in their place.

    Returns:
        The cleanup; None, with a warning in the log, when there is nothing to record or replay.

    Raises:
        ValueError: The config is not valid, or the recording cannot be written or read.
    """
    from amplifier_modules.provider_replay.mounting import mount_provider

    return await mount_provider(coordinator, settings)


async def on_session_ready(coordinator: Any) -> None:
    """Does the same with providers that were mounted later."""
    from amplifier_modules.provider_replay.mounting import take_over

    await take_over(coordinator)
