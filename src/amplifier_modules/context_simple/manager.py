"""The conversation in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_core.interfaces import Hooks
from amplifier_modules._shared.context.manager import CompactingContext
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.context_simple.config import MODULE_ID, SimpleContextConfig


class SimpleContextManager(CompactingContext):
    """Keeps the conversation in memory.

    Args:
        config: Settings; see `SimpleContextConfig`.
        hooks: Where compaction events go; None for nowhere.
        coordinator: The session's coordinator; may be None.
        **settings: Single settings, which take precedence over those in `config`.

    Raises:
        ValueError: A setting is unknown or out of range.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | SimpleContextConfig | None = None,
        *,
        hooks: Hooks | None = None,
        coordinator: Any = None,
        **settings: Any,
    ) -> None:
        if settings or not isinstance(config, SimpleContextConfig):
            given = {**dict(config or {}), **settings}
            config = parse_config(SimpleContextConfig, given, MODULE_ID)
        super().__init__(config, hooks=hooks, coordinator=coordinator)
