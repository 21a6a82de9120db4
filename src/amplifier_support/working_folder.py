"""The working directory: that of the process, or of one of several sessions that a program runs in one process."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_folder: ContextVar[str | None] = ContextVar("amplifier_working_folder", default=None)


def working_folder() -> str:
    """Return the absolute path.

    Raises:
        FileNotFoundError: The working directory of the process was removed.
    """
    return _folder.get() or os.getcwd()


@contextmanager
def working_in(folder: str | None) -> Generator[None]:
    """Work in a folder in this block, and in the tasks and threads of asyncio that it starts; None is that of the process.

    The process keeps its own: programs are started with this one, and relative paths are joined to it.
    """
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)
