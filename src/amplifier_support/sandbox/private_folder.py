"""A folder for the temporary files of one session's commands, removed when the session ends.

Its owner keeps it locked, so that folders of processes that were killed are recognised and removed
by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile

from amplifier_support.private_files import temporary_folder, try_lock

_PREFIX = "amplifier-commands-"


class PrivateFolder:
    """A folder that only its owner can enter.

    Attributes:
        path: Where it is, links resolved.
    """

    def __init__(self) -> None:
        place = os.path.realpath(temporary_folder())
        _remove_abandoned(place)
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
            lock = _lock(self.path)
            if lock is not None:
                self._lock = lock
                # A session that signals have ended may not have been closed.
                atexit.register(self.remove)
                return

    def remove(self) -> None:
        """Remove it with everything in it."""
        _remove(self.path)
        # Not before: a signal may end this.
        atexit.unregister(self.remove)
        os.close(self._lock)


def _lock(path: str) -> int | None:
    """Lock a folder: a descriptor; None if it is another process's, or was just removed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        if try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    except OSError:
        pass  # Removed meanwhile.
    os.close(descriptor)
    return None


def _remove_abandoned(place: str) -> None:
    with os.scandir(place) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in found:
        # Someone else's stays, and so does what is not a folder.
        with contextlib.suppress(OSError):
            if os.lstat(path).st_uid != os.getuid():
                continue
            lock = _lock(path)
            if lock is not None:
                _remove(path)
                os.close(lock)


def _remove(path: str) -> None:
    def unlock(function: object, failed: str, error: object) -> None:
        # A command may have made a folder read-only; the mode of a link cannot be changed.
        for folder in (os.path.dirname(failed), failed):
            with contextlib.suppress(OSError):
                if os.path.isdir(folder) and not os.path.islink(folder):
                    os.chmod(folder, 0o700)

    shutil.rmtree(path, onerror=unlock)
    shutil.rmtree(path, ignore_errors=True)
