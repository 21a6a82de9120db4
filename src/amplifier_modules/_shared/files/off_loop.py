"""Work on files that must not hold up everything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INLINE = 1024 * 1024


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once when it handles few bytes, which is faster, else in a thread.

    A cancellation waits for the thread, which uses the caller's descriptors.
    """
    if size <= _INLINE:
        return work()
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
