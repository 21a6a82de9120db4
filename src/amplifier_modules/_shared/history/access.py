"""Access to messages, blocks and calls as mappings, typed models or dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeGuard, cast

from pydantic import BaseModel

from amplifier_core.message_models import Message
from amplifier_modules._shared.history.values import clean_text

CALL_TYPES = frozenset({"tool_call", "tool_use"})
RESULT_ROLES = frozenset({"tool", "function"})


def call_ids(message: Mapping[str, Any] | Message) -> list[str]:
    """Ids of an assistant message's tool calls, in order, in either message form."""
    if message.get("role") != "assistant":
        return []
    blocks = [b for b in mappings(message.get("content")) if kind_of(b) in CALL_TYPES]
    listed = message.get("tool_calls")
    if not blocks and not listed:
        return []
    calls = [*blocks, *mappings(listed)]
    return list(dict.fromkeys(i for call in calls if (i := id_of(call, "id"))))


def result_ids(message: Mapping[str, Any] | Message) -> list[str]:
    """Ids of the tool calls a message answers: a tool message's own, and those of its blocks."""
    own = id_of(message, "tool_call_id") if message.get("role") in RESULT_ROLES else None
    content = message.get("content")
    if own is None and isinstance(content, str):
        return []
    blocks = [b for b in mappings(content) if kind_of(b) == "tool_result"]
    ids = [result_id(block) or own for block in blocks]
    return list(dict.fromkeys(i for i in (*ids, own) if i))


def as_mapping(raw: object) -> Mapping[str, Any] | None:
    """Keys and values of a mapping, a typed model (what was set on it) or a content dataclass."""
    if isinstance(raw, (dict, Mapping)):  # dict first: the check of an abstract class is slow
        return cast("Mapping[str, Any]", raw)
    if isinstance(raw, BaseModel):
        values = {**raw.__dict__, **(raw.model_extra or {})}
        return {key: value for key, value in values.items() if value is not None}
    if is_dataclass(raw):
        to_dict = getattr(raw, "to_dict", None)
        return cast("Mapping[str, Any]", to_dict()) if callable(to_dict) else None
    return None


def is_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, (list, tuple))


def mappings(items: object) -> Iterator[Mapping[str, Any]]:
    """Every item of a list that can be read like a mapping; nothing if it is not a list."""
    for raw in items if is_list(items) else ():
        item = as_mapping(raw)
        if item is not None:
            yield item


def kind_of(block: Mapping[str, Any]) -> str:
    return str(block.get("type"))


def id_of(source: Mapping[str, Any] | Message, key: str) -> str | None:
    value = source.get(key)
    if value is None or value == "":
        return None
    return clean_text(str(value))


def result_id(block: Mapping[str, Any]) -> str | None:
    for key in ("tool_call_id", "tool_use_id", "call_id"):
        found = id_of(block, key)
        if found:
            return found
    return None
