"""Run a helper program without blocking the event loop.

Apart from `programs`: importing asyncio takes longer than what most commands do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from amplifier_support.programs import Finished, run


async def run_in_thread(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    max_bytes: int | None = None,
) -> Finished:
    """`run` without blocking the event loop; cancelling it ends the helper, and waits for that."""
    stop = threading.Event()
    work = asyncio.ensure_future(
        asyncio.to_thread(run, argv, cwd=cwd, env=env, seconds=None, stop=stop, max_bytes=max_bytes)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        # How it ended makes no difference now; asking keeps asyncio from reporting it.
        work.exception()
        raise
