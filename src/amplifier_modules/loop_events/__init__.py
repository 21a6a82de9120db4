"""loop-events: the agent loop whose decisions are events that handlers may override."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_modules._shared.module.declaration import ConfigDeclaration

if TYPE_CHECKING:
    from amplifier_modules.loop_events.config import EventsConfig

__amplifier_module_type__ = "orchestrator"

_config = ConfigDeclaration("loop-events", "amplifier_modules.loop_events.config:EventsConfig")
config_schema = _config.schema


@_config.parsed
async def mount(coordinator: Any, settings: EventsConfig) -> None:
    """Mount the orchestrator; settings as in `EventsConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules.loop_events.orchestrator import EventsOrchestrator

    await EventsOrchestrator(settings).mount(coordinator)
