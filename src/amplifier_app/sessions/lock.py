"""One writer for one session: a lock the operating system lets go of when its holder dies."""

import contextlib
import json
import os
import time
from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_app.base.private_files import open_private
from amplifier_support.private_files import try_lock

_ASK, _ASK_SECONDS = 20, 0.01
"""How often, and how many seconds apart, the lock file is read for its holder's pid."""


class SessionLock:
    """Exclusive use of a session's folder, held until `release` or the process's end.

    Raises:
        SessionError: Another process holds it; the message names its pid. Or the disk refused.
    """

    def __init__(self, path: Path, session_id: str) -> None:
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            if not try_lock(self._descriptor):
                raise SessionError(
                    f"Session {session_id} is in use by process {self._holder()}",
                    hint="End that run, or start from here with a copy of the session.",
                )
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps({"pid": os.getpid()}).encode(), 0)
        except OSError as error:
            self.release()
            raise SessionError(f"Cannot lock {path}: {error.strerror}") from error
        except BaseException:
            self.release()
            raise

    def _holder(self) -> str:
        for _ in range(_ASK):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(os.pread(self._descriptor, 4096, 0))["pid"])
            # Between taking the lock and writing the pid there is nothing to read yet.
            time.sleep(_ASK_SECONDS)
        return "of unknown pid"

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
