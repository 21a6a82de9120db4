"""What loop-basic mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator


async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`."""
    await BasicOrchestrator(settings).mount(coordinator)
