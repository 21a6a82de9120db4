"""Reads the data of a session's events, in the kernel's form or that of other modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amplifier_support.fields import field_of

EventHandler = Callable[[str, dict[str, Any]], None]


def peek(data: object, key: str) -> Any:
    """Return `data[key]` of event data, or None, without its protective copy: read only."""
    return dict.get(data, key) if isinstance(data, dict) else None


def input_in(data: object) -> Any:
    """The input of the tool call in event data; None if it is missing."""
    value = peek(data, "tool_input")
    return peek(data, "input") if value is None else value


def result_in(data: object) -> Any:
    """The result of the tool call in event data; None if it is missing."""
    result = peek(data, "tool_result")
    return peek(data, "result") if result is None else result


def is_answer(data: object) -> bool:
    """Return true if the user allowed the call of an `approval:granted` event when asked."""
    return str(peek(data, "decided_by")).startswith("answer")


def has_succeeded(result: Any) -> bool:
    """Whether a tool's result, in the kernel's or another form, is a success."""
    success = field_of(result, "success")
    return True if success is None else bool(success)
