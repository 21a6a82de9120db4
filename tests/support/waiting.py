"""Waiting, with a limit, for what another process or another task does."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_until(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    *,
    process: subprocess.Popen[bytes] | None = None,
    about: Callable[[], object] | None = None,
) -> None:
    """Return once `condition` is true; fail if that takes too long, or after the end of `process`.

    `about` returns what to show on failure.
    """
    limit = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < limit, about() if about else f"not true after {seconds:g} s"
        time.sleep(0.02)


async def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """`wait_until` without blocking the event loop."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not true after {seconds:g} s"
        await asyncio.sleep(0.01)
