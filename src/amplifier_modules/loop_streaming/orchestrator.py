"""The orchestrator of loop-streaming, and its mount."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.streaming import STREAM_EVENTS
from amplifier_modules._shared.loop.turn import LoopOrchestrator


class StreamingOrchestrator(LoopOrchestrator):
    """Shows answers as they are generated, with every provider that can stream."""

    name = "loop-streaming"
    events = (*LoopOrchestrator.events, *STREAM_EVENTS)


async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`."""
    await StreamingOrchestrator(settings).mount(coordinator)
