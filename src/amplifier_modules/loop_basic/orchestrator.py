"""The orchestrator of loop-basic, and its mount."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.turn import LoopOrchestrator


class BasicOrchestrator(LoopOrchestrator):
    """Uses `provider.complete(request)`; nothing is shown before an answer is complete."""

    name = "loop-basic"
    streams = False


async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`."""
    await BasicOrchestrator(settings).mount(coordinator)
