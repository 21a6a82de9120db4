"""Requests complete answers from providers."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.replies import blocks_of
from amplifier_modules._shared.module.spans import Span


async def complete(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    """Request a complete answer and emit events for its blocks."""
    response = await provider.complete(request)
    await announce(response, channel, span)
    return response


async def announce(response: Any, channel: Channel, span: Span) -> None:
    """Emit start and end events, without deltas, for the blocks of a complete answer."""
    blocks = blocks_of(response)
    for index, block in enumerate(blocks):
        about = {"block_type": block.get("type"), "block_index": index, **span.fields}
        named = {key: block[key] for key in ("id", "name", "visibility") if key in block}
        await channel.notify("content_block:start", {**about, **named})
        await channel.notify(
            "content_block:end", {**about, "total_blocks": len(blocks), "block": block}
        )
