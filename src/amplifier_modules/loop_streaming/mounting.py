"""What loop-streaming mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator


async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`."""
    await StreamingOrchestrator(settings).mount(coordinator)
