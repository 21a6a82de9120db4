"""Removing sessions, with their sub-sessions and nothing else.

A session is removed by renaming its folder to a name that no session has, and then removing that
folder. Whenever the process dies, the session is therefore either whole or gone; what is left of a
folder is removed by the next command that cleans up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.lock import SessionLock, is_locked
from amplifier_app.sessions.summary import RESULT_FILE, SessionSummary, short_id
from amplifier_support.files import sync_folder, system_errors_as

REMOVED = ".removed-"
UNFINISHED = ".unfinished-"
"""Beginnings of the names of folders that are being removed or filled; no session has such a name."""

_CREATED_FIRST = {"lock", "plan.yaml", "transcript.jsonl", "run.log", RESULT_FILE, "socket"}


class AlreadyExists(SessionError):
    """The id of a new session is taken."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} already exists",
            hint=f"Resume it: amplifier run --resume {short_id(session_id)}",
        )


def with_sub_sessions(session_id: str, summaries: Iterable[SessionSummary]) -> list[str]:
    """The ids of a session and all sub-sessions below it, the innermost first."""
    spawned: dict[str, list[str]] = {}
    for summary in summaries:
        if summary.agent is not None and summary.parent is not None:
            spawned.setdefault(summary.parent, []).append(summary.id)
    ordered: list[str] = []
    waiting = [session_id]
    while waiting:
        current = waiting.pop()
        if current not in ordered:
            ordered.append(current)
            waiting += spawned.get(current, [])
    return ordered[::-1]


def remove_sessions(root: Path, session_ids: Iterable[str]) -> None:
    """Remove sessions, in this order. If one of them is in use, none is removed.

    Raises:
        SessionError: One is in use, or cannot be removed.
    """
    paths = [root / session_id for session_id in session_ids]
    with contextlib.ExitStack() as locks:
        for path in paths:
            locks.enter_context(SessionLock(path / "lock", path.name))
        for path in paths:
            remove_folder(path)


def is_remnant(path: Path) -> bool:
    """Return True if a folder is all that is left of a session whose creation was killed.

    Its metadata is written last, and its first message after that. A link is never one.
    """
    if path.is_symlink():
        return False
    try:
        names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
        return names <= _CREATED_FIRST and not (
            "transcript.jsonl" in names and os.lstat(path / "transcript.jsonl").st_size
        )
    except OSError:
        return False


def remove_remnant(path: Path) -> None:
    """Remove the folder of a session whose creation did not end, unless another process holds it.

    Raises:
        SessionError: It is in use, or cannot be removed.
    """
    with SessionLock(path / "lock", path.name):
        # With the lock, no other process can complete it.
        if is_remnant(path):
            remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove the folder of a session, whose lock must be held.

    Raises:
        SessionError: It cannot be removed.
    """
    aside = path.with_name(f"{REMOVED}{path.name[:100]}-{secrets.token_hex(4)}")
    with system_errors_as(SessionError, f"cannot remove {path}"):
        os.rename(path, aside)
        sync_folder(path.parent)
    # Links in it are removed, never followed.
    with system_errors_as(
        SessionError,
        f"session {path.name} is removed, but not all of its files",
        hint=f"Remove the rest: {aside}",
    ):
        shutil.rmtree(aside)


def remove_leftovers(root: Path) -> list[str]:
    """Remove what killed processes left behind; returns the names of the folders.

    A folder that a living process fills is left alone.
    """
    gone: list[str] = []
    with contextlib.suppress(OSError):
        for path in [*root.glob(f"{REMOVED}*"), *root.glob(f"{UNFINISHED}*")]:
            if path.is_symlink() or not path.is_dir() or is_locked(path / "lock"):
                continue
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                gone.append(path.name)
    return gone


def measure_size(path: Path) -> int:
    """Bytes of all files below a folder; links count as themselves."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            # A file may be removed while sizes are added up.
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
