"""loop-events: the agent loop whose decisions are events that handlers may answer otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__amplifier_module_type__ = "orchestrator"


def config_schema() -> dict[str, Any]:
    """What `mount` takes as config, as JSON Schema."""
    from amplifier_modules._shared.module.config_schema import config_schema_of
    from amplifier_modules.loop_events.config import EventsConfig

    return config_schema_of(EventsConfig)


async def mount(coordinator: Any, config: Mapping[str, Any] | None = None) -> None:
    """Mount the orchestrator; settings as in `EventsConfig`.

    Raises:
        ValueError: The config is not valid.
    """
    from amplifier_modules._shared.module.config import parse_config
    from amplifier_modules.loop_events.config import MODULE_ID, EventsConfig
    from amplifier_modules.loop_events.orchestrator import EventsOrchestrator

    settings = parse_config(EventsConfig, config, MODULE_ID)
    await EventsOrchestrator(settings).mount(coordinator)
