"""JSON for output, valid whatever the values: Python itself would write `Infinity`, which no standard has."""

from __future__ import annotations

import json
from typing import Any

from amplifier_support.journal import finite_data


def json_text(value: Any) -> str:
    """Return ASCII JSON over several lines; numbers that JSON lacks become text, such as "inf"."""
    return _dumped(value, indent=2)


def json_line(value: Any) -> str:
    """Return one line of ASCII JSON, without control characters or lone surrogates."""
    return _dumped(value, separators=(",", ":")) + "\n"


def value_text(value: Any) -> str:
    """A string as it is, any other value as one line of JSON."""
    return value if isinstance(value, str) else _dumped(value, ensure_ascii=False)


def _dumped(value: Any, **layout: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=str, **layout)
    except ValueError:
        return json.dumps(finite_data(value, default=str), **layout)
