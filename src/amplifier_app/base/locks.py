"""File locks: one process at a time fills a folder of the cache or changes settings, the others wait."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from amplifier_app.base import file_writing, paths
from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.base.slow_steps import slow_step
from amplifier_support.files import FOLDER_MODE, make_private_folder, open_locked
from amplifier_support.programs import Stopped

_POLL_SECONDS = 0.05
_SETTINGS_LOCK = ".settings.lock"


class _Depth(threading.local):
    """The number of times this thread has entered `changing_settings`."""

    value = 0


_depth = _Depth()


@contextmanager
def hold_lock(file: Path, stop: threading.Event | None) -> Generator[None]:
    """Hold the lock of `file`; a missing folder is created.

    Raises:
        Stopped: `stop` was set while waiting.
        OSError: The lock cannot be created, or the file system has none.
    """
    make_private_folder(file.parent)
    with slow_step(f"waiting for another process that holds {file}"):
        while (descriptor := open_locked(file)) is None:
            time.sleep(_POLL_SECONDS)
            if stop is not None and stop.is_set():
                raise Stopped(file.name)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def changing_private(lock: Path, action: str) -> Generator[None]:
    """Hold a lock to change files in its folder, which only the user may use.

    Args:
        lock: The lock; its folder is created if missing.
        action: For the error message; completes "cannot …".

    Raises:
        ConfigError: The lock cannot be created, or the block raised `OSError` or `SessionError`.
    """
    folder = lock.parent
    try:
        file_writing.make_private_folder(folder)
        folder.chmod(FOLDER_MODE)
        with hold_lock(lock, None):
            yield
    except SessionError as error:
        raise ConfigError(error.message, hint=error.hint) from error
    except OSError as error:
        raise ConfigError(f"cannot {action} {folder}: {error.strerror}") from error


@contextmanager
def changing_settings() -> Generator[None]:
    """Hold the lock under which a command reads, changes and writes settings, plans and their locks.

    One lock for all of a user's files: what is written to one can depend on the others. A thread that
    holds it can enter again. Nothing may wait for the network or a person inside.

    Raises:
        ConfigError: The lock cannot be created.
    """
    with ExitStack() as held:
        if not _depth.value:
            file = paths.config_dir() / _SETTINGS_LOCK
            try:
                held.enter_context(hold_lock(file, None))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise ConfigError(
                    f"cannot lock {file}: {reason}", hint=file_writing.OWN_FOLDER
                ) from error
        _depth.value += 1
        try:
            yield
        finally:
            _depth.value -= 1
