"""Fetching in threads that stop when their caller is cancelled, with the programs and downloads they have started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread, in which `stop_event` returns an event that cancellation sets."""
    stop = threading.Event()

    def run() -> T:
        _stop.set(stop)  # in the thread's copy of the context
        return work()

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        stop.set()
        raise


def stop_event() -> threading.Event | None:
    """The event that stops the work of this thread; None if it cannot be stopped."""
    return _stop.get()
