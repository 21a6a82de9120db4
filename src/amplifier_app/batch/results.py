"""The lines of results.jsonl: the JSON result of a row's run, and which row it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_THE_ROW: dict[str, Any] = {
    "row": {"type": "string", "description": "The row's id."},
    "number": {"type": "integer", "minimum": 1, "description": "Its position in the input."},
    "attempts": {
        "type": "integer",
        "minimum": 1,
        "description": "How often it was begun; a row that continues its session is not begun again.",
    },
}


_NOTICES: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string"},
    "description": "What `amplifier run` would write to stderr: warnings, retries, and how much of a conversation that "
    "is too long for the model was left out.",
}


def result_line(row_id: str, number: int, attempts: int, result: dict[str, Any]) -> dict[str, Any]:
    """The line of a row that has ended."""
    return {"row": row_id, "number": number, "attempts": attempts, **result}


def dollars_of(result: Mapping[str, Any]) -> float | None:
    """What the session of a row has cost; None if unknown."""
    return (result.get("cost") or {}).get("usd")


def seconds_of(result: Mapping[str, Any]) -> float:
    """How long the row ran."""
    return result["duration_ms"] / 1000


def batch_schema(result: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a line, made of that of a run's result."""
    return {
        **result,
        "title": "A line of results.jsonl",
        "description": "The result of one row of `amplifier batch`.",
        "required": [*_OF_THE_ROW, *result["required"], "notices"],
        "properties": {**_OF_THE_ROW, **result["properties"], "notices": _NOTICES},
    }
