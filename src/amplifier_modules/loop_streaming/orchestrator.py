"""The orchestrator of loop-streaming."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.completion import complete
from amplifier_modules._shared.loop.orchestrator import LoopOrchestrator
from amplifier_modules._shared.loop.streaming import STREAM_EVENTS, stream
from amplifier_modules._shared.module.spans import Span


class StreamingOrchestrator(LoopOrchestrator):
    """Shows answers as they are generated, with every provider that can stream."""

    name = "loop-streaming"
    events = (*LoopOrchestrator.events, *STREAM_EVENTS)

    async def ask(self, provider: Any, request: Any, channel: Channel, span: Span) -> Any:
        how = stream if self.config.streaming else complete
        return await how(provider, request, channel, span)
