"""File locks: one process at a time fills a folder of the cache, the others wait."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from amplifier_support.programs import Stopped

_POLL_SECONDS = 0.5


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible by the user only.

    Raises:
        OSError: It cannot be created.
    """
    # `mkdir(parents=True)` applies the mode to the last folder only, the umask to the others.
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(file: Path, stop: threading.Event | None) -> Generator[None]:
    """Hold the lock of `file`; a missing folder is created.

    Raises:
        Stopped: `stop` was set while waiting.
    """
    # Imports asyncio and more; needed only for fetching.
    import filelock

    make_private(file.parent)
    lock = filelock.FileLock(file)
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_POLL_SECONDS)
        except filelock.Timeout:
            if stop is not None and stop.is_set():
                raise Stopped(file.name) from None
    try:
        yield
    finally:
        lock.release()
