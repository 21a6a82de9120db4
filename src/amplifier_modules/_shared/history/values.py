"""Text and values that JSON in UTF-8 can represent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

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
    """Whether `text` is only white space, which vendors reject."""
    return not text or text.isspace()


def is_deeper(value: object, depth: int) -> bool:
    """Whether `value` is nested more than `depth` levels deep."""
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
    """Whether `value` is plain JSON; its text may have lone surrogates."""
    return is_clean(value, any_text=True)


def is_clean(value: object, depth: int = 0, *, any_text: bool = False) -> bool:
    """Whether `value` is plain JSON with encodable text, so that `clean_value` is not needed.

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
            if not isinstance(key, str) or not is_clean(key, any_text=any_text):
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
