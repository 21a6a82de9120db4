"""Single-writer lock of a session, which the operating system releases when its holder dies."""

import contextlib
import errno
import json
import os
import time
from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_support.files import on_error, open_private_in, system_errors_as, try_lock

_TRIES, _TRY_SECONDS = 5, 0.01
"""The number of times, and the interval in seconds, to take the lock, which others hold for a moment to see whether
it is held."""
_ASK = 20
"""The number of times to read the holder's pid from the file."""


class InUse(SessionError):
    """Another process holds the lock.

    Attributes:
        holder: Its pid, in words.
    """

    def __init__(self, session_id: str, holder: str, hint: str) -> None:
        super().__init__(f"session {session_id} is in use ({holder})", hint=hint)
        self.holder = holder


class SessionLock:
    """Exclusive use of a session's folder, held until `release` or the end of the process.

    Args:
        path: The lock file, in a folder that is not a link.
        session_id: The session.
        hint: What to do if another process holds it.

    Raises:
        InUse: Another process holds it.
        SessionError: It cannot be opened or written.
    """

    def __init__(self, path: Path, session_id: str, hint: str = "Stop that process first.") -> None:
        with system_errors_as(SessionError, f"cannot open {path}"):
            self._descriptor = open_private_in(path.parent, path.name, os.O_RDWR | os.O_CREAT)
        with system_errors_as(SessionError, f"cannot lock {path}"), on_error(self.release):
            if not take_lock(self._descriptor):
                raise InUse(session_id, f"process {self._holder()}", hint)
            if not os.path.samestat(os.fstat(self._descriptor), os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "the session was removed")
            # Error messages of other processes give this pid. A full disk must not prevent a removal.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)

    def _holder(self) -> str:
        for _ in range(_ASK):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(os.pread(self._descriptor, 4096, 0))["pid"])
            # The holder writes its pid shortly after taking the lock.
            time.sleep(_TRY_SECONDS)
        return "of unknown pid"

    @property
    def is_held(self) -> bool:
        return self._descriptor >= 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self.is_held:
            os.close(self._descriptor)
            self._descriptor = -1


def take_lock(descriptor: int) -> bool:
    """Lock an open file, see `try_lock`; others may look just now whether it is locked."""
    for _ in range(_TRIES):
        if try_lock(descriptor):
            return True
        time.sleep(_TRY_SECONDS)
    return False


def is_locked(path: Path) -> bool:
    """Return True if another process holds the lock in the file `path`, or it is unusable."""
    try:
        # Not for writing: a file system may be read-only.
        descriptor = open_private_in(path.parent, path.name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Those who look do not take each other for a holder.
        return not try_lock(descriptor, shared=True)
    except OSError:
        return True
    finally:
        os.close(descriptor)
