"""JSON for output, valid whatever the values: Python itself would write `Infinity`, which no standard has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from amplifier_support.journal import finite_data


def json_text(value: Any) -> str:
    """Return ASCII JSON over several lines; numbers that JSON lacks become text, such as "inf"."""
    return _dumped(value, indent=2)


def json_pieces(value: Any, indent: str = "") -> Iterator[str]:
    """Yield `json_text` in pieces. In mappings and lists an iterator becomes a list, with one line for each item."""
    inner = f"{indent}  "
    if isinstance(value, Iterator):
        before = f"[\n{inner}"
        for item in cast("Iterator[Any]", value):
            yield f"{before}{_dumped(item, separators=(', ', ': '))}"
            before = f",\n{inner}"
        yield f"\n{indent}]" if before.startswith(",") else "[]"
    elif isinstance(value, dict) and value:
        before = f"{{\n{inner}"
        for key, item in cast("dict[str, Any]", value).items():
            yield f"{before}{json.dumps(key)}: "
            yield from json_pieces(item, inner)
            before = f",\n{inner}"
        yield f"\n{indent}}}"
    elif isinstance(value, list) and any(
        isinstance(item, dict) for item in cast("list[Any]", value)
    ):
        before = f"[\n{inner}"
        for item in cast("list[Any]", value):
            yield before
            yield from json_pieces(item, inner)
            before = f",\n{inner}"
        yield f"\n{indent}]"
    else:
        yield json_text(value).replace("\n", f"\n{indent}")


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
