"""What hooks-status mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_core.events import PROVIDER_REQUEST
from amplifier_modules.hooks_status.config import MODULE_ID, StatusConfig
from amplifier_modules.hooks_status.status import StatusHook


async def mount(coordinator: Any, settings: StatusConfig) -> Callable[[], None]:
    """Answer `provider:request` with the status; settings as in `StatusConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = StatusHook(coordinator, settings)
    return coordinator.hooks.register(
        PROVIDER_REQUEST, hook.on_request, priority=settings.priority, name=MODULE_ID
    )
