"""The orchestrator of loop-events, and its mount."""

from __future__ import annotations

from typing import Any

from amplifier_extras.loop_events.choices import CHOICE_EVENTS
from amplifier_extras.loop_events.config import MODULE_ID, EventsConfig
from amplifier_extras.loop_events.turn import EventsTurn
from amplifier_extras.loop_events.workflow import STEP_EVENTS
from amplifier_modules._shared.loop.orchestrator import LoopOrchestrator
from amplifier_modules._shared.loop.streaming import STREAM_EVENTS


class EventsOrchestrator(LoopOrchestrator):
    """The loop of loop-streaming with its decisions as events and multi-step turns."""

    name = MODULE_ID
    events = (*LoopOrchestrator.events, *STREAM_EVENTS, *STEP_EVENTS, *CHOICE_EVENTS)
    turn_type = EventsTurn

    def __init__(self, config: EventsConfig | None = None) -> None:
        super().__init__(config or EventsConfig())


async def mount(coordinator: Any, settings: EventsConfig) -> None:
    """Mount the orchestrator; settings as in `EventsConfig`."""
    await EventsOrchestrator(settings).mount(coordinator)
