"""Where a module's own code is while it runs: a line its author can go to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from amplifier_core._foreign import line_in


def place_now(root: Path, thread: int) -> str:
    """The line below `root` that a thread, or a task that waits in it, is at; empty if none is."""
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
    # It is the module's loop, and in use: if it cannot be asked now, the next look may do.
    except Exception:
        return []


def _frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it waits for, from the outermost in."""
    while coroutine is not None:
        inner = None
        # Coroutines, generators and async generators name the same things differently.
        for prefix, awaited in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(coroutine, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                inner = getattr(coroutine, f"{prefix}_{awaited}", None)
        coroutine = inner
