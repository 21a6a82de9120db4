"""End code of modules that blocks the event loop longer than something may take.

Once the time is over, a timer of the process asks the loop for an answer, and raises an exception in the code that
runs in the main thread if none comes. What waits without blocking is not concerned: the loop's own timers end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Generator
from types import FrameType
from typing import Any, ClassVar

GRACE_SECONDS = 5.0
"""Seconds that blocked code has after the end of a turn was requested."""
_ANSWER_SECONDS = 2.0
_INTERVAL = 0.5


class LoopBlocked(BaseException):
    """Raised in code that blocks the event loop; not caught by `except Exception` in a module."""


class BlockLimit:
    """A time after which nothing may block the running event loop, until it is removed.

    Limits of tasks that run at the same time are independent of each other. There are none outside of the
    main thread, and on systems without such timers.

    Args:
        seconds: From now.
        answer_seconds: Seconds that the loop then has for its answer, and at least half a second.
    """

    _all: ClassVar[list[BlockLimit]] = []
    _before: ClassVar[tuple[Any, float] | None] = None
    _asked_at: ClassVar[float | None] = None

    def __init__(self, seconds: float, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = time.monotonic() + seconds
        self._answer_seconds = answer_seconds
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and hasattr(signal, "setitimer"):
            self._all.append(self)
            self._set_timer()

    def remove(self) -> None:
        """Remove it; a second call does nothing."""
        if self in self._all:
            self._all.remove(self)
            self._set_timer()

    @classmethod
    def _set_timer(cls) -> None:
        now = time.monotonic()
        if cls._all:
            first = max(0.001, min(limit._due for limit in cls._all) - now)
            left, _ = signal.setitimer(signal.ITIMER_REAL, first, _INTERVAL)
            if cls._before is None:
                handler = signal.signal(signal.SIGALRM, cls._look)
                cls._before = handler, now + left if left else 0.0
        elif cls._before is not None:
            (handler, due), cls._before = cls._before, None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, due and max(0.001, due - now))

    @classmethod
    def _look(cls, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        over = [limit for limit in cls._all if limit._due <= now]
        if not over:
            cls._asked_at = None
        elif cls._asked_at is None:
            cls._asked_at = now
            over[0]._loop.call_soon_threadsafe(cls._answer)
        elif now - cls._asked_at >= min(limit._answer_seconds for limit in over):
            raise LoopBlocked

    @classmethod
    def _answer(cls) -> None:
        cls._asked_at = None


@contextlib.contextmanager
def block_limit(seconds: float | None, answer_seconds: float = _ANSWER_SECONDS) -> Generator[None]:
    """Have a `BlockLimit` while entered; None for none."""
    limit = None if seconds is None else BlockLimit(seconds, answer_seconds)
    try:
        yield
    finally:
        if limit is not None:
            limit.remove()
