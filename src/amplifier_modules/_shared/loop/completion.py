"""Asks providers for whole answers."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.replies import blocks_of
from amplifier_modules._shared.module.spans import Span


async def complete(provider: Any, request: Any, channel: Channel, span: Span) -> Any:
    """Ask a provider for a whole answer at once and tell of its blocks."""
    response = await provider.complete(request)
    await announce(response, channel, span)
    return response


async def announce(response: Any, channel: Channel, span: Span) -> None:
    """Tell of the blocks of an answer that was not streamed: each starts and ends, no deltas."""
    blocks = blocks_of(response)
    for index, block in enumerate(blocks):
        about = {"block_type": block.get("type"), "block_index": index, **span.fields}
        named = {key: block[key] for key in ("id", "name", "visibility") if key in block}
        await channel.notify("content_block:start", {**about, **named})
        await channel.notify(
            "content_block:end", {**about, "total_blocks": len(blocks), "block": block}
        )
