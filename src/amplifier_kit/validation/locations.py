"""Finds the line of a module's own code that is being run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from amplifier_core._foreign import line_in


def place_now(root: Path, thread: int) -> str:
    """The line below `root` that a thread, or a task waiting in it, is at; empty if none."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - it is documented
    tasks: list[asyncio.Task[Any]] = []
    while frame is not None:
        place = line_in(root, frame, frame.f_lineno)
        if place:
            return place
        if frame.f_code.co_name == "_run_once":
            tasks += _tasks(frame.f_locals.get("self"))
        frame = frame.f_back
    for task in tasks:
        places = [line_in(root, at, at.f_lineno) for at in _frames(task.get_coro())]
        if any(places):
            return [place for place in places if place][-1]
    return ""


def _tasks(loop: Any) -> list[asyncio.Task[Any]]:
    """The unfinished tasks of a loop that another thread runs."""
    try:
        return list(asyncio.all_tasks(loop))
    # The module's loop is in use; if this fails, the next sample may work.
    except Exception:
        return []


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits, outermost first."""
    while coroutine is not None:
        inner = None
        # Coroutines, generators and async generators use different attribute names.
        for prefix, awaited in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(coroutine, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                inner = getattr(coroutine, f"{prefix}_{awaited}", None)
        coroutine = inner
