"""Text and values that JSON in UTF-8 can represent: how messages are read and written.

The kernel's blocks and counts become plain data without pydantic, whose `model_dump` builds a model's
serializer first. That costs as much as a request's other work, and a conversation of plain text needs
none: the values of these models are JSON's own types already.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from typing import Any, NoReturn, TypeGuard, cast

from pydantic import BaseModel

from amplifier_core.message_models import (
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Usage,
)
from amplifier_support.fields import to_mapping
from amplifier_support.text import lazy_pattern

MAX_DEPTH = 100
"""Nesting limit: a deeper value is not a sensible tool input and would exhaust the stack."""

TOO_DEEP = "[nested too deep]"


def clean_text(text: str) -> str:
    """`text` without lone surrogates: pairs are joined, single ones become U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_blank(text: str) -> bool:
    """Return True if `text` is only white space, which vendors reject."""
    return not text or text.isspace()


def is_deeper(value: object, depth: int) -> bool:
    """Return True if `value` is nested more than `depth` levels deep."""
    level = [value]
    for _ in range(depth + 1):
        held = [
            cast("dict[object, object]", item).values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, (dict, list))
        ]
        level = [item for items in held for item in cast("list[object]", items)]
        if not held:
            return False
    return True


def is_plain(value: object) -> bool:
    """Return True if `value` is plain JSON; its text may have lone surrogates."""
    return is_clean(value, any_text=True)


def is_clean(value: object, depth: int = 0, *, any_text: bool = False) -> bool:
    """Return True if `value` is plain JSON with encodable text, so that `clean_value` is not needed.

    Args:
        any_text: Whether text may also have lone surrogates.
    """
    if isinstance(value, str):
        return any_text or value.isascii() or clean_text(value) is value
    if value is None or isinstance(value, int):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        return False
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str) or not (key.isascii() or is_clean(key, any_text=any_text)):
                return False
            if not is_clean(item, depth + 1, any_text=any_text):
                return False
        return True
    if isinstance(value, list):
        items = cast("list[object]", value)
        return all(is_clean(item, depth + 1, any_text=any_text) for item in items)
    return False


def clean_value(value: object, depth: int = 0) -> Any:
    """A copy of `value` as plain JSON: keys are strings, unsupported values become text."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= MAX_DEPTH:
        return TOO_DEEP
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {clean_text(str(key)): clean_value(item, depth + 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean_value(item, depth + 1) for item in cast("list[object]", value)]
    return clean_text(str(value))


def as_json_text(value: object) -> str:
    """`value` as JSON text, readable by a model (no ASCII escapes)."""
    return json.dumps(clean_value(value), ensure_ascii=False)


CALL_TYPES = frozenset({"tool_call", "tool_use"})
RESULT_ROLES = frozenset({"tool", "function"})


def stored_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tool calls in the blocks of a message, or else in its list."""
    blocks = [b for b in mappings(message.get("content")) if read_kind(b) in CALL_TYPES]
    return blocks or list(mappings(message.get("tool_calls")))


def call_parts(call: Mapping[str, Any]) -> tuple[str, object]:
    """The tool that a stored call names, empty if none, and its input in any form."""
    inner = to_mapping(call.get("function")) or call
    arguments = inner.get("input") if "input" in inner else inner.get("arguments")
    return str(inner.get("name") or inner.get("tool") or ""), arguments


def call_ids(message: Mapping[str, Any] | Message) -> list[str]:
    """Ids of an assistant message's tool calls, in order, in either message form."""
    if message.get("role") != "assistant":
        return []
    content, listed = message.get("content"), message.get("tool_calls")
    if not listed and isinstance(content, str):
        return []
    blocks = [b for b in mappings(content) if read_kind(b) in CALL_TYPES]
    if not blocks and not listed:
        return []
    calls = [*blocks, *mappings(listed)]
    return list(dict.fromkeys(i for call in calls if (i := read_id(call, "id"))))


def result_ids(message: Mapping[str, Any] | Message) -> list[str]:
    """Ids of the tool calls a message answers: a tool message's own, and those of its blocks."""
    own = read_id(message, "tool_call_id") if message.get("role") in RESULT_ROLES else None
    content = message.get("content")
    if own is None and isinstance(content, str):
        return []
    blocks = [b for b in mappings(content) if read_kind(b) == "tool_result"]
    ids = [result_id(block) or own for block in blocks]
    return list(dict.fromkeys(i for i in (*ids, own) if i))


TOOL_SEARCH = "tool_search"
"""The tool with which a model finds tools that requests leave out."""

_FOUND = lazy_pattern(r"^- ([A-Za-z0-9_-]+): ", re.MULTILINE)


def found_tools(message: Mapping[str, Any] | Message) -> list[str]:
    """Names of the tools that a search has found, if the message is its result: of lines `- NAME: …`."""
    if message.get("role") not in RESULT_ROLES or message.get("name") != TOOL_SEARCH:
        return []
    content = message.get("content")
    blocks = [content] if isinstance(content, str) else [b.get("text") for b in mappings(content)]
    return [name for text in blocks if isinstance(text, str) for name in _FOUND.findall(text)]


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


def read_kind(block: Mapping[str, Any]) -> str:
    return str(block.get("type"))


def read_id(source: Mapping[str, Any] | Message, key: str) -> str | None:
    value = source.get(key)
    if value is None or value == "":
        return None
    return clean_text(str(value))


def result_id(block: Mapping[str, Any]) -> str | None:
    for key in ("tool_call_id", "tool_use_id", "call_id"):
        call_id = read_id(block, key)
        if call_id:
            return call_id
    return None


_FLAT = (TextBlock, ThinkingBlock, RedactedThinkingBlock)


def plain_block(block: BaseModel) -> dict[str, Any]:
    """A content block as a dict, without fields that are None."""
    if type(block) not in _FLAT:
        return block.model_dump(exclude_none=True)
    return {key: value for key, value in _fields(block) if value is not None}


def plain_usage(usage: BaseModel) -> dict[str, Any]:
    """A usage report as a dict, without what is not known; money is text."""
    if type(usage) is not Usage:
        return usage.model_dump(exclude_none=True)
    return {
        key: str(value) if isinstance(value, Decimal) else value
        for key, value in _fields(usage)
        if value is not None
    }


def _fields(model: BaseModel) -> list[tuple[str, Any]]:
    return [*model.__dict__.items(), *(model.model_extra or {}).items()]


_PORTABLE = lazy_pattern(r"[A-Za-z0-9_-]{1,64}")
_NOT_PORTABLE = lazy_pattern(r"[^A-Za-z0-9_-]")


def portable_id(text: str) -> str:
    """A call's id or a tool's name in characters every vendor accepts: ``[A-Za-z0-9_-]``, at most 64.

    A valid one is returned unchanged; any other becomes a readable part and a hash, always the same
    for the same text, so that a provider may apply it to calls, results and tools independently.
    """
    if _PORTABLE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{_NOT_PORTABLE.sub('_', text)[:48]}_{digest}"


TOO_DEEP_INPUT = f"the input is nested more than {MAX_DEPTH} levels deep"
_SHOWN = 500


class InvalidArguments(ValueError):
    """The text is not a JSON object that a tool can get; the message is for the model."""


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in a JSON text; none for a blank text. If a key is repeated, the last one counts.

    Raises:
        InvalidArguments: It is not JSON, not an object, nested more than `MAX_DEPTH` levels deep, or
            has a number that is not finite.
    """
    if not text or text.isspace():
        return {}
    try:
        value: Any = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise InvalidArguments(TOO_DEEP_INPUT) from None
    except ValueError as error:
        problem = f"the input is not valid JSON ({error}): {text[:_SHOWN]}"
        raise InvalidArguments(problem) from error
    if not isinstance(value, dict):
        raise InvalidArguments(f"the input must be a JSON object, not {type(value).__name__}")
    # Only a text with this many brackets can be so deep.
    if text.count("{") + text.count("[") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise InvalidArguments(TOO_DEEP_INPUT)
    return cast("dict[str, Any]", value)


def arguments_or_text(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments in a JSON text and None; or none and the text, if it is not valid."""
    try:
        return parse_arguments(text), None
    except InvalidArguments:
        return {}, text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is out of range")
    return number
