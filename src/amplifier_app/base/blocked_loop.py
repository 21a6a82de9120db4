"""End code of modules that blocks the event loop longer than something may take.

Once the time is over, a timer of the process asks the loop for an answer, and raises an exception in the code that
runs in the main thread if none comes. What waits without blocking is not concerned: the loop's own timers end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from types import FrameType
from typing import Any, ClassVar

GRACE_SECONDS = 5.0
"""Seconds that blocked code has after the end of a turn was requested."""
_ANSWER = 2.0
_INTERVAL = 0.5
# `signal.getsignal` looks up a name for the handler first, which takes longer.
_get_handler = sys.modules["_signal"].getsignal


class LoopBlocked(BaseException):
    """Raised in code that blocks the event loop; not caught by `except Exception` in a module."""


class BlockLimit:
    """A time after which nothing may block the running event loop, until it is removed.

    Limits of tasks that run at the same time are independent of each other. There are none outside of the
    main thread, on systems without such timers, and while the loop does not run.

    Args:
        seconds: From now.
        answer_seconds: Seconds that the loop then has for its answer, and at least 0.4 s.
        own: Whether the limit leaves alone code that has its own, such as another row of a batch.
    """

    _all: ClassVar[list[BlockLimit]] = []
    _own: ClassVar[ContextVar[tuple[BlockLimit, ...]]] = ContextVar("own", default=())
    _before: ClassVar[tuple[Any, float, float] | None] = None
    _asked_at: ClassVar[float | None] = None

    def __init__(self, seconds: float, answer_seconds: float = _ANSWER, own: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = time.monotonic() + seconds
        self._answer_seconds, self._is_own = answer_seconds, own
        if own:
            self._own.set((*self._own.get(), self))
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            self._all.append(self)
            self._set_timer()

    def remove(self) -> None:
        """Remove it; a second call does nothing."""
        self._own.set(tuple(limit for limit in self._own.get() if limit is not self))
        if self in self._all:
            self._all.remove(self)
            if not self._all:
                self._set_timer()

    @classmethod
    def _set_timer(cls) -> None:
        now = time.monotonic()
        if cls._all:
            first = max(0.001, min(limit._due for limit in cls._all) - now)
            # A module may have replaced the timer or the handler. One that rings too early looks again later.
            rings = 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= first
            if cls._before and rings and _get_handler(signal.SIGALRM) == cls._look:
                return
            # Before the timer, which would end the process.
            handler = signal.signal(signal.SIGALRM, cls._look)
            left, interval = signal.setitimer(signal.ITIMER_REAL, first, _INTERVAL)
            if cls._before is None:
                cls._before = handler, left and now + left, interval
        elif cls._before is not None:
            (handler, due, interval), cls._before = cls._before, None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, due and max(0.001, due - now), interval)

    @classmethod
    def _look(cls, signum: int, frame: FrameType | None) -> None:
        now, own = time.monotonic(), [limit for limit in cls._own.get() if limit in cls._all]
        over = [limit for limit in cls._all if limit._due <= now and limit._loop.is_running()]
        if own:
            over = [limit for limit in over if limit in own or not limit._is_own]
        if not over:
            cls._asked_at = None
            if cls._all:
                first = max(_INTERVAL, min(limit._due for limit in cls._all) - now)
                signal.setitimer(signal.ITIMER_REAL, first, _INTERVAL)
        elif cls._asked_at is None:
            cls._asked_at = now
            over[0]._loop.call_soon_threadsafe(setattr, cls, "_asked_at", None)
        # A limit that begins or ends has the timer ring at once if another one is over.
        elif now - cls._asked_at >= max(0.4, min(limit._answer_seconds for limit in over)):
            cls._asked_at = now  # What handles the exception has as much time.
            place = f" at {frame.f_code.co_filename}, line {frame.f_lineno}" if frame else ""
            raise LoopBlocked(f"it blocks the program{place}")


@contextlib.contextmanager
def block_limit(seconds: float | None, answer_seconds: float = _ANSWER) -> Generator[None]:
    """Have a `BlockLimit` of the code in it while entered; None for none."""
    limit = None if seconds is None else BlockLimit(seconds, answer_seconds, own=True)
    try:
        yield
    finally:
        if limit is not None:
            limit.remove()
