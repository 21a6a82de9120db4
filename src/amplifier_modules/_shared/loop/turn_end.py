"""How a turn ends, and the events that report it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

Status = Literal["success", "incomplete", "error"]

MAX_ITERATIONS_REACHED = "Max iterations reached"
OUT_OF_BUDGET = "budget"
EMPTY = "empty"
"""Reason of a turn whose answer has neither text nor tool calls."""

CUT_SHORT = ("length", "content_filter")
"""Finish reasons of an incomplete answer."""


class TurnOutcome(NamedTuple):
    """How a turn ended.

    Attributes:
        status: Whether it is a success.
        response: The text returned.
        reason: Why it is not a success, as one word.
        error: The exception that ended it.
        details: Further data of `orchestrator:complete` about the reason.
    """

    status: Status
    response: str = ""
    reason: str | None = None
    error: BaseException | None = None
    details: Mapping[str, Any] = MappingProxyType({})


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as event data."""
    if isinstance(error, asyncio.CancelledError):
        return {"type": "AbortError", "message": "interrupted", "retryable": False}
    return {
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "retryable": bool(getattr(error, "retryable", False)),
    }
