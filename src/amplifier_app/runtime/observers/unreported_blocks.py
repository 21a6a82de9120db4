"""Report the text of answers for loops that report no blocks.

Such a loop adds an answer to the context before it runs the calls of the answer or ends; the text
is read from there.
"""

from __future__ import annotations

from typing import Any, cast

from amplifier_app.runtime.observers.observer import FIRST
from amplifier_app.sessions.tool_calls import calls_in
from amplifier_core.events import (
    CONTENT_BLOCK_DELTA,
    CONTENT_BLOCK_END,
    CONTENT_BLOCK_START,
    ORCHESTRATOR_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REQUEST,
    TOOL_PRE,
)

UNREPORTED = "app-unreported-blocks"
"""The `source` in the events of such blocks."""


def report_unreported_blocks(coordinator: Any) -> None:
    """Emit `content_block:end` for the text of answers of which nothing is reported."""
    reports = False
    done: tuple[int, dict[str, Any]] | None = None

    def on_block(event: str, data: dict[str, Any]) -> None:
        nonlocal reports
        reports = reports or dict.get(data, "source") != UNREPORTED

    def on_next(event: str, data: dict[str, Any]) -> None:
        nonlocal reports
        reports = False

    async def on_answer(event: str, data: dict[str, Any]) -> None:
        nonlocal done
        context = None if reports else coordinator.get("context")
        if context is None:
            return
        messages = await context.get_messages()
        # Further calls of the same answer.
        if not messages or done == (len(messages), messages[-1]):
            return
        done = (len(messages), messages[-1])
        blocks = _texts(messages[-1], before_calls=event == TOOL_PRE)
        for index, block in enumerate(blocks):
            about = {"block_type": block["type"], "block_index": index, "total_blocks": len(blocks)}
            await coordinator.hooks.emit(
                CONTENT_BLOCK_END, {**about, "block": block, "source": UNREPORTED}
            )

    handlers = {
        **dict.fromkeys((CONTENT_BLOCK_START, CONTENT_BLOCK_DELTA, CONTENT_BLOCK_END), on_block),
        **dict.fromkeys((PROMPT_SUBMIT, PROVIDER_REQUEST), on_next),
        **dict.fromkeys((TOOL_PRE, ORCHESTRATOR_COMPLETE), on_answer),
    }
    for event, handler in handlers.items():
        coordinator.hooks.register(event, handler, FIRST, name=UNREPORTED)


def _texts(message: dict[str, Any], *, before_calls: bool) -> list[dict[str, Any]]:
    """Return the blocks with text of a message if it is an answer with calls, or without."""
    if message.get("role") != "assistant" or bool(calls_in(message)) != before_calls:
        return []
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [
        cast("dict[str, Any]", block)
        for block in blocks
        if isinstance(block, dict) and block.get("type") in ("text", "thinking")
    ]
