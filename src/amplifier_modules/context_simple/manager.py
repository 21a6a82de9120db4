"""The conversation in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amplifier_core.interfaces import Hooks
from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.context.manager import CompactingContext, mount_context
from amplifier_modules._shared.module.config import parse_config

MODULE_ID = "context-simple"


class SimpleContextManager(CompactingContext):
    """Keeps the conversation in memory.

    Args:
        config: Settings; see `ContextConfig`.
        hooks: Where compaction events go; None for nowhere.
        coordinator: The session's coordinator; may be None.
        **settings: Single settings, which take precedence over those in `config`.

    Raises:
        ValueError: A setting is unknown or out of range.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ContextConfig | None = None,
        *,
        hooks: Hooks | None = None,
        coordinator: Any = None,
        **settings: Any,
    ) -> None:
        if settings or not isinstance(config, ContextConfig):
            values = {**dict(config or {}), **settings}
            config = parse_config(ContextConfig, values, MODULE_ID)
        super().__init__(config, hooks=hooks, coordinator=coordinator)


async def mount(coordinator: Any, settings: ContextConfig) -> Callable[[], None]:
    """Mount a `SimpleContextManager` that learns from the usage providers report.

    Returns:
        Cleanup: stop listening for usage.
    """
    context = SimpleContextManager(settings, hooks=coordinator.hooks, coordinator=coordinator)
    return await mount_context(coordinator, context, MODULE_ID)
