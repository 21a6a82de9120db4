"""Parses a provider's response, typed or in the dictionary form of the Orchestrator Contract."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from amplifier_core._event_data import PlainData, plain
from amplifier_core.message_models import ChatResponse, Usage
from amplifier_modules._shared.history.plain_blocks import plain_block, plain_usage
from amplifier_modules._shared.history.values import clean_value, is_plain
from amplifier_modules._shared.loop.calls import Call
from amplifier_modules._shared.loop.results import warn_of_ignored
from amplifier_support.fields import field_of, mapping_of
from amplifier_support.usage import add_counts, dollars, token_count, token_counts

_TEXT_FIELDS = {"text": "text", "thinking": "thinking", "redacted_thinking": "data"}
"""The field that a block of each of these types has to have."""
_OPAQUE = ("thinking", "redacted_thinking", "reasoning")
_COUNTED = ("input_tokens", "output_tokens", "total_tokens")

logger = logging.getLogger(__name__)


def blocks_of(response: Any) -> list[dict[str, Any]]:
    """The content blocks of a response as dicts, in order, without fields that are None."""
    content = field_of(response, "content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, (list, tuple)):
        return []
    blocks = (_valid(_block(item)) for item in cast("Iterable[Any]", content))
    return [block for block in blocks if block]


def _valid(block: dict[str, Any]) -> dict[str, Any]:
    """A block that can be saved, shown and sent back; empty if nothing is left of it.

    A provider may pass on anything its service sent, and a module of others may return anything.
    """
    kind = block.get("type")
    needed = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if needed is not None and not isinstance(block.get(needed), str):
        return {}
    if is_plain(block):
        return block
    # Thinking goes back unchanged or not at all.
    return {} if kind in _OPAQUE else clean_value(block)


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, BaseModel):
        return plain_block(item)
    if isinstance(item, Mapping):
        return dict(cast("Mapping[str, Any]", item))
    if isinstance(item, str):
        return {"type": "text", "text": item}
    text = getattr(item, "text", None)
    return {"type": "text", "text": text} if isinstance(text, str) else {}


def is_response(value: Any) -> bool:
    """Whether a value can be parsed as a response."""
    if isinstance(value, Mapping):
        return bool({"content", "tool_calls"} & cast("Mapping[str, Any]", value).keys())
    return hasattr(value, "content")


def text_of(blocks: list[dict[str, Any]]) -> str:
    """The text of a message: its text blocks joined, as they stream."""
    return "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")


def usage_of(response: Any) -> dict[str, Any]:
    """The usage of a response as plain data: its valid counts and cost.

    Empty if it reports none, or if a count is not valid: the rest would be too low.
    """
    usage = field_of(response, "usage")
    if isinstance(usage, BaseModel):
        usage = plain_usage(usage)
    if token_counts(usage, *_COUNTED) is None:
        return {}
    fields = cast("Mapping[Any, Any]", usage).items()
    valid = {key: count for key, value in fields if (count := token_count(value)) is not None}
    cost = dollars(cast("Mapping[str, Any]", usage).get("cost_usd"))
    return valid if cost is None else {**valid, "cost_usd": str(cost)}


def shown_to_hooks(response: Any) -> PlainData:
    """A response as event data: plain data that also supports attribute access."""
    shown = plain(response)
    if not isinstance(shown, PlainData):
        fields = ChatResponse.model_fields
        shown = PlainData({name: plain(field_of(response, name)) for name in fields})
    shown["usage"] = plain(usage_of(response)) or None
    return shown


def apply_hook_changes(response: Any, shown: Mapping[str, Any], changed: Any) -> Any:
    """The response after hooks; the same object if they did not change it.

    Args:
        response: The provider's response.
        shown: The same response as passed to hooks.
        changed: Their replacement.
    """
    if changed is shown or changed == shown:
        return response
    if not isinstance(changed, Mapping):
        return changed if hasattr(changed, "content") else response
    fields = cast("Mapping[str, Any]", changed)
    if not isinstance(response, BaseModel):
        return {**cast("dict[str, Any]", response), **fields} if "content" in fields else response
    # Only changed fields: hooks see text in place of values that JSON cannot represent.
    changes = {key: value for key, value in fields.items() if shown.get(key) != value}
    try:
        typed = ChatResponse.model_validate({"content": [], **changes})
    except ValidationError as error:
        warn_of_ignored("response", "provider:response", error)
        return response
    return response.model_copy(update={key: getattr(typed, key) for key in changes})


def metadata_of(response: Any) -> Mapping[str, Any]:
    """The metadata of a response, empty if it has none."""
    return mapping_of(field_of(response, "metadata"))


def lost_usage(usages: Iterable[Usage]) -> dict[str, Any]:
    """The usage of attempts without an answer, as one; see `summed_usage`."""
    return summed_usage(map(plain_usage, usages))


def with_lost(usage: dict[str, Any], lost: list[Usage]) -> dict[str, Any]:
    """The usage of an answer and of the attempts before it; unknown if that of the answer is."""
    return summed_usage([usage, lost_usage(lost)]) if lost and usage else usage


def summed_usage(usages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The usage of several requests as one; its cost only if that of each is known."""
    total = UsageTotal()
    known = True
    for usage in usages:
        total.add(usage)
        known = known and "cost_usd" in usage
    summed = total.as_dict()
    if not known:
        summed.pop("cost_usd", None)
    return summed


class UsageTotal:
    """Adds up the usage of a turn's provider calls: token counts, and the cost if known."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._cost: Decimal | None = None

    def add(self, usage: dict[str, Any]) -> None:
        add_counts(self._totals, usage)
        cost = dollars(usage.get("cost_usd"))
        if cost is not None:
            self._cost = (self._cost or Decimal(0)) + cost

    def as_dict(self) -> dict[str, Any]:
        """Counts by name, and `cost_usd` as a decimal string if any call had a cost."""
        totals: dict[str, Any] = dict(self._totals)
        if self._cost is not None:
            totals["cost_usd"] = str(self._cost)
        return totals


def assistant_message(response: Any, blocks: list[dict[str, Any]], calls: list[Call]) -> Any:
    """The message to store for a response: its blocks and the fields that published parts read.

    Those are `tool_calls` and `thinking_block`; see `amplifier_modules._shared.history`.
    """
    message: dict[str, Any] = {"role": "assistant", "content": blocks}
    thinking = next((block for block in blocks if block.get("type") == "thinking"), None)
    if thinking is not None:
        message["thinking_block"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "tool": call.name, "arguments": call.arguments} for call in calls
        ]
    metadata: dict[str, Any] = {}
    usage = usage_of(response)
    if usage:
        metadata["usage"] = usage
    model = metadata_of(response).get("model")
    if isinstance(model, str):
        metadata["model"] = model
    if metadata:
        message["metadata"] = metadata
    return message
