"""Work on files that must not hold up everything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_INLINE = 1024 * 1024


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once when it handles few bytes, which is faster, else in a thread."""
    return work() if size <= _INLINE else await in_thread(work)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancellation waits for it, since it uses the caller's descriptors."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
