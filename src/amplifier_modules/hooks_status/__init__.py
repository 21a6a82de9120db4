"""hooks-status: tells the model the time, the directory and the state of git with each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__amplifier_module_type__ = "hook"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.hooks_status.config import StatusConfig

    return config_schema_of(StatusConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> Callable[[], None]:
    """Answer `provider:request` with the status; settings as in `StatusConfig`.

    Returns:
        A function that stops doing so.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_core.events import PROVIDER_REQUEST
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.hooks_status.config import MODULE_ID, StatusConfig
    from amplifier_modules.hooks_status.status import StatusHook

    settings = parse_config(StatusConfig, config, MODULE_ID)
    hook = StatusHook(coordinator, settings)
    return coordinator.hooks.register(
        PROVIDER_REQUEST, hook.on_request, priority=settings.priority, name=MODULE_ID
    )
