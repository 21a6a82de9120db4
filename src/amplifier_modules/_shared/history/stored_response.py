"""Responses of providers as JSON data, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core.content_models import (
    TextContent,
    ThinkingContent,
    ToolCallContent,
    ToolResultContent,
)
from amplifier_core.message_models import ChatResponse

_EVENT_BLOCKS = {
    "text": TextContent,
    "thinking": ThinkingContent,
    "tool_call": ToolCallContent,
    "tool_result": ToolResultContent,
}


def plain(value: Any) -> Any:
    """Convert anything a provider returns to JSON types; other values become text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and held:
        fields = cast("dict[str, Any]", held)
        return {key: plain(item) for key, item in fields.items() if not key.startswith("_")}
    return str(value)


def to_response(stored: Mapping[str, Any], *, as_mapping: bool) -> Any:
    """Rebuild a stored response as the provider gave it: a `ChatResponse`, or a mapping."""
    if as_mapping:
        return dict(stored)
    blocks = stored.get("content_blocks")
    if isinstance(blocks, list):
        # Published providers add the blocks for events; loops call their methods.
        stored = {**stored, "content_blocks": [_event_block(block) for block in blocks]}
    return ChatResponse.model_validate(stored)


def _event_block(stored: Any) -> Any:
    if not isinstance(stored, dict):
        return stored
    stored = cast("dict[str, Any]", stored)
    kind = _EVENT_BLOCKS.get(str(stored.get("type")))
    if kind is None:
        return stored
    names = {field.name for field in fields(kind)} - {"type"}
    return kind(**{name: stored[name] for name in names & stored.keys()})
