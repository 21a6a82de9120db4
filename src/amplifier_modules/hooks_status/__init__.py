"""hooks-status: add the time, the directory and the state of git to each model request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.hooks_status.config import StatusConfig

__amplifier_module_type__ = "hook"

_config = ConfigDeclaration("hooks-status", "amplifier_modules.hooks_status.config:StatusConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: StatusConfig) -> Callable[[], None]:
    """Answer `provider:request` with the status; settings as in `StatusConfig`.

    Returns:
        A cleanup function that removes the hook.

    Raises:
        ValueError: The config is invalid.
    """
    from amplifier_core.events import PROVIDER_REQUEST
    from amplifier_modules.hooks_status.config import MODULE_ID
    from amplifier_modules.hooks_status.status import StatusHook

    hook = StatusHook(coordinator, settings)
    return coordinator.hooks.register(
        PROVIDER_REQUEST, hook.on_request, priority=settings.priority, name=MODULE_ID
    )
