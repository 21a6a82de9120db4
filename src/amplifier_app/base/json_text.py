"""JSON for output, valid whatever the values: Python itself would write `Infinity`, which no standard has."""

from __future__ import annotations

import json
import math
from typing import Any, cast


def json_text(value: Any) -> str:
    """Return ASCII JSON over several lines; numbers that JSON lacks become text, such as "inf"."""
    return _dumped(value, indent=2)


def json_line(value: Any) -> str:
    """Return one line of ASCII JSON, without control characters or lone surrogates."""
    return _dumped(value, separators=(",", ":")) + "\n"


def value_text(value: Any) -> str:
    """A string as it is, any other value as one line of JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _dumped(value: Any, **layout: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=str, **layout)
    except ValueError:
        return json.dumps(_finite(value), default=str, **layout)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_finite(key): _finite(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in cast("list[Any]", value)]
    return value
