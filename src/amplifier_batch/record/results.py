"""The lines of results.jsonl: the JSON result of a row's run, and which row it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import itemgetter
from types import NoneType
from typing import Any

from amplifier_app.base.outcome import Ending

_OF_THE_ROW: dict[str, Any] = {
    "row": {"type": "string", "description": "The row's id."},
    "number": {"type": "integer", "minimum": 1, "description": "Its position in the input."},
    "repeat": {
        "type": "integer",
        "minimum": 1,
        "description": "Which run of the row this is, with `--repeat`; otherwise 1.",
    },
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


def result_line(
    row_id: str, number: int, attempts: int, result: dict[str, Any], repeat: int = 1
) -> dict[str, Any]:
    """The line of a row that has ended."""
    numbers = {"number": number, "repeat": repeat, "attempts": attempts}
    return {"row": row_id, **numbers, **result}


_OK, _ERROR, _WAITING = Ending.OK.value, Ending.ERROR.value, Ending.WAITING.value
_TEXT = (str, NoneType)
_MOST = 1e15
"""Larger numbers are not of a run."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "row": (str,),
    "number": (int,),
    "repeat": (int,),
    "attempts": (int,),
    "outcome": (str,),
    "exit_code": (int,),
    "response": (str,),
    "session_id": _TEXT,
    "model": _TEXT,
    "steps": (int,),
    "duration_ms": (int, float),
    "tools": (list,),
    "sub_sessions": (list,),
    "usage": (dict, NoneType),
    "cost": (dict, NoneType),
    "error": (dict, NoneType),
}
"""The fields that readers use; checking them is faster than the schema."""


_read_fields = itemgetter(*_TYPES)


@cache
def _have_types(kinds: tuple[type, ...]) -> bool:
    """Return True if the values of these types are valid; few combinations occur in very many lines."""
    return all(map(issubclass, kinds, _TYPES.values()))


def is_result(line: Mapping[str, Any]) -> bool:
    """Return True if a line has the fields that readers use."""
    try:
        if not _have_types(tuple(map(type, _read_fields(line)))):
            return False
    except KeyError:
        return False
    error, cost, usage = line["error"] or {}, line["cost"] or {}, line["usage"] or {}
    for number in (line["duration_ms"], cost.get("usd"), usage.get("total_tokens")):
        if number is not None and not (type(number) in (int, float) and -_MOST < number < _MOST):
            return False
    return isinstance(error.get("message"), _TEXT)


def read_dollars(result: Mapping[str, Any]) -> float | None:
    """Return the cost of a row's session; None if unknown."""
    return (result.get("cost") or {}).get("usd")


def read_cached(result: Mapping[str, Any]) -> int:
    """Return how many answers of a row's session came from the cache."""
    return (result.get("usage") or {}).get("cached_calls", 0)


def read_seconds(result: Mapping[str, Any]) -> float:
    """Return the seconds for which the row ran."""
    return result["duration_ms"] / 1000


def read_passed(result: Mapping[str, Any]) -> bool | None:
    """Return True if the row passed; None if it waits for approval, or a score that decides it is missing."""
    if (outcome := result["outcome"]) == _OK:
        return True
    checks = result.get("checks") or () if outcome == _ERROR else ()
    is_missing = any(check["exit_code"] is None for check in checks)
    return None if outcome == _WAITING or is_missing else False


def read_reason(result: Mapping[str, Any]) -> str:
    """Why the row failed; empty if it passed."""
    return (result.get("error") or {}).get("message") or ""


def batch_schema(result: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a line, made of that of a run's result."""
    return {
        **result,
        "title": "A line of results.jsonl",
        "description": "The result of one row of `amplifier batch`.",
        "required": [*_OF_THE_ROW, *result["required"], "notices"],
        "properties": {**_OF_THE_ROW, **result["properties"], "notices": _NOTICES},
    }
