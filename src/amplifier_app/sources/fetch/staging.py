"""Folders in which something is put together before it gets its name."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from amplifier_support.private_files import make_private_folder, try_lock

_PREFIX = ".stage-"


@contextlib.contextmanager
def staging(folder: Path) -> Generator[Path]:
    """A new folder in `folder`, removed in the end. A missing `folder` is created for the user only.

    It is locked, so that what killed processes left is recognised and removed by the next one.

    Raises:
        OSError: It cannot be created.
    """
    make_private_folder(folder)
    _remove_abandoned(folder)
    while True:
        with (
            tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as name,
            _hold_lock(name) as is_ours,
        ):
            if is_ours is False:
                continue  # Another process took it for abandoned before it was locked.
            yield Path(name)
            return


@contextlib.contextmanager
def _hold_lock(path: str) -> Generator[bool | None]:
    """Hold the lock of a folder; False if it is another process's, or gone; None if it can have none."""
    if os.name != "posix":
        yield None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        yield False
        return
    try:
        try:
            is_ours: bool | None = try_lock(descriptor) and _is_at(descriptor, path)
        except OSError:  # a file system without locks
            is_ours = None
        yield is_ours
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _remove_abandoned(folder: Path) -> None:
    for path in list(folder.glob(f"{_PREFIX}*")):
        with _hold_lock(str(path)) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(path, ignore_errors=True)
