"""Convert responses and errors to plain data, and back."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from pydantic import BaseModel

from amplifier_core import llm_errors
from amplifier_core.content_models import (
    TextContent,
    ThinkingContent,
    ToolCallContent,
    ToolResultContent,
)
from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatResponse

_EVENT_BLOCKS = {
    "text": TextContent,
    "thinking": ThinkingContent,
    "tool_call": ToolCallContent,
    "tool_result": ToolResultContent,
}
_ERROR_FIELDS = (
    "provider",
    "model",
    "status_code",
    "retryable",
    "retry_after",
    "delay_multiplier",
    "tool_name",
    "raw_arguments",
)


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


def response_of(recorded: Mapping[str, Any], *, as_mapping: bool) -> Any:
    """Rebuild a recorded response as the provider gave it: a `ChatResponse`, or a mapping."""
    if as_mapping:
        return dict(recorded)
    blocks = recorded.get("content_blocks")
    if isinstance(blocks, list):
        # Published providers add the blocks for events; loops call their methods.
        recorded = {**recorded, "content_blocks": [_event_block(block) for block in blocks]}
    return ChatResponse.model_validate(recorded)


def _event_block(recorded: Any) -> Any:
    if not isinstance(recorded, dict):
        return recorded
    recorded = cast("dict[str, Any]", recorded)
    kind = _EVENT_BLOCKS.get(str(recorded.get("type")))
    if kind is None:
        return recorded
    names = {field.name for field in fields(kind)} - {"type"}
    return kind(**{name: recorded[name] for name in names & recorded.keys()})


def plain_error(error: BaseException) -> dict[str, Any]:
    """An error's class, message and the other attributes of kernel errors."""
    fields = {name: getattr(error, name, None) for name in _ERROR_FIELDS}
    if not isinstance(error, LLMError):
        fields = {}
    about = {key: value for key, value in fields.items() if value is not None}
    return {"type": type(error).__name__, "message": str(error), **about}


def error_of(recorded: Mapping[str, Any]) -> Exception:
    """Rebuild an error: a kernel class, a Python class, or a class of that name."""
    name, message = str(recorded.get("type")), str(recorded.get("message", ""))
    name = name if name.isidentifier() else "RecordedError"
    kind: Any = getattr(llm_errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, LLMError)) and "retryable" in recorded:
        # A provider's own class under the kernel's.
        kind = type(name, (LLMError,), {})
    if isinstance(kind, type) and issubclass(kind, LLMError):
        error = kind(message)
        for field in _ERROR_FIELDS:
            if field in recorded:
                setattr(error, field, recorded[field])
        return error
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(name, (Exception,), {})
    try:
        return kind(message)
    except TypeError:  # such as UnicodeDecodeError, which takes more than a message
        return Exception(f"{name}: {message}")
