"""What loop-events mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.loop_events.config import EventsConfig
from amplifier_modules.loop_events.orchestrator import EventsOrchestrator


async def mount(coordinator: Any, settings: EventsConfig) -> None:
    """Mount the orchestrator; settings as in `EventsConfig`."""
    await EventsOrchestrator(settings).mount(coordinator)
