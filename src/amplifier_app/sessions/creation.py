"""Creating whole sessions: a folder gets the name of a session once it is complete and on disk."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_app.base.private_files import make_private_folder
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.removal import UNFINISHED, AlreadyExists
from amplifier_support.private_files import FOLDER_MODE, sync_folder


@contextlib.contextmanager
def unfinished_session(root: Path, session_id: str) -> Generator[Path]:
    """A new folder to fill, which becomes the folder of the session when the block ends.

    If the block raises, the folder is removed; if the process dies, it is left under a name that no
    session has (see `remove_leftovers`).

    Raises:
        SessionError: The id is taken, or the folder cannot be created.
    """
    target = root / session_id
    make_private_folder(root)
    _require_free(target)
    path = root / f"{UNFINISHED}{session_id[:100]}-{secrets.token_hex(4)}"
    try:
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)
    except OSError as error:
        raise SessionError(f"cannot create {path}: {error.strerror}") from error
    lock: SessionLock | None = None
    try:
        lock = SessionLock(path / "lock", session_id)
        yield path
        for folder, _, _ in os.walk(path):
            sync_folder(folder)
        _require_free(target)
        os.rename(path, target)
        sync_folder(root)
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise SessionError(f"cannot create session {session_id}: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            lock.release()


def _require_free(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(target.name)
