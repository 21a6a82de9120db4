"""How a turn ends, and the events that tell of it."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, NamedTuple

Status = Literal["success", "incomplete", "error"]

MAX_ITERATIONS_REACHED = "Max iterations reached"
CUT_SHORT = ("length", "content_filter")
"""Finish reasons of an answer that is not whole."""


class Ending(NamedTuple):
    """How a turn ended: its status, the text returned, and why it is not a success."""

    status: Status
    response: str = ""
    reason: str | None = None
    error: BaseException | None = None


def described(error: BaseException) -> dict[str, Any]:
    """An error as event data."""
    if isinstance(error, asyncio.CancelledError):
        return {"type": "AbortError", "message": "interrupted", "retryable": False}
    return {
        "type": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "retryable": bool(getattr(error, "retryable", False)),
    }
