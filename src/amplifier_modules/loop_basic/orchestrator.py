"""The orchestrator of loop-basic, and its mount."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.loop.orchestrator import LoopOrchestrator
from amplifier_modules._shared.loop.streaming import complete
from amplifier_modules._shared.module.spans import Span


class BasicOrchestrator(LoopOrchestrator):
    """Uses `provider.complete(request)`; nothing is shown before an answer is complete."""

    name = "loop-basic"

    async def ask(self, provider: Any, request: Any, channel: Channel, span: Span) -> Any:
        return await complete(provider, request, channel, span)


async def mount(coordinator: Any, settings: LoopConfig) -> None:
    """Mount the orchestrator; settings as in `LoopConfig`."""
    await BasicOrchestrator(settings).mount(coordinator)
