"""What context-simple mounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_modules._shared.context.mounting import mount_context
from amplifier_modules.context_simple.config import MODULE_ID, SimpleContextConfig
from amplifier_modules.context_simple.manager import SimpleContextManager


async def mount(coordinator: Any, settings: SimpleContextConfig) -> Callable[[], None]:
    """Mount a `SimpleContextManager` that learns from the usage providers report.

    Args:
        coordinator: Where it is mounted.
        settings: See `config.SimpleContextConfig`.

    Returns:
        Cleanup: stop listening for usage.
    """
    context = SimpleContextManager(settings, hooks=coordinator.hooks, coordinator=coordinator)
    return await mount_context(coordinator, context, MODULE_ID)
