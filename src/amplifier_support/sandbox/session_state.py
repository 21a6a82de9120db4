"""The shared state of the sandboxes of one session, and the folder for the temporary files of its commands.

The folder is removed when the session ends. Its owner keeps it locked, so that folders of processes that
were killed are recognised and removed by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from amplifier_support.files import is_below, lock_at, temporary_folder
from amplifier_support.path_patterns import find_matches
from amplifier_support.sandbox.available import other_paths
from amplifier_support.sandbox.policy import Level, PolicyError

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
    with contextlib.suppress(OSError):
        return lock_at(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    return None


def _remove_abandoned(place: str) -> None:
    with os.scandir(place) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in paths:
        # Someone else's stays, and so does what is not a folder.
        with contextlib.suppress(OSError):
            if os.lstat(path).st_uid != os.getuid():
                continue
            lock = _lock(path)
            if lock is not None:
                _remove(path)
                os.close(lock)


def _remove(path: str) -> None:
    _unlock(path)
    for parent, folders, _ in os.walk(path):
        for name in folders:
            _unlock(os.path.join(parent, name))
    shutil.rmtree(path, ignore_errors=True)


def _unlock(folder: str) -> None:
    """Let its owner list and change a folder: a command may have made it read-only."""
    with contextlib.suppress(OSError):
        # The mode of a link cannot be changed.
        if not os.path.islink(folder):
            os.chmod(folder, 0o700)


_MAX_SEARCHED = 20_000
_CREDENTIALS = Path(__file__).with_name("credentials.txt")


def _list_credentials(folder: str) -> list[str]:
    """Files and folders that commands cannot read, even where `read: host` is set, as absolute paths.

    One that a variable names is left out if it is in `folder`, the working directory, or contains it: a
    project may bring its own.
    """
    lines = [line for line in _CREDENTIALS.read_text(encoding="utf-8").splitlines() if line]
    below_home = [os.path.join("~", line) for line in lines if line[0] not in "#$"]
    named = [os.environ.get(line[1:], "") for line in lines if line[0] == "$"]
    paths = filter(os.path.isabs, os.pathsep.join(named).split(os.pathsep))
    return below_home + [
        path for path in paths if not is_below(path, folder) and not is_below(folder, path)
    ]


class SessionState:
    """The shared state of the sandboxes of one session.

    Args:
        folder: The session's working directory.
        hidden: What commands can neither read nor change, in addition to known credentials.
        readable: Folders below these that they can read nevertheless.
        plan_files: The files of the session's plan.
        denied: Patterns for more that they can neither read nor change. What exists when the first
            command starts is hidden.

    Attributes:
        folder: The session's working directory, links resolved.
        denied: These patterns.
        private: The folder for temporary files, once there is one.
        sandboxes: All of them.
        needed: Whether something asked for a sandbox.
        used: The layer that commands have run in.
        refused: What was missing for the first policy that must be enforced.
        without: What was missing for the first policy that need not be enforced.
        known: The folders that policies name, each with what it was at first.
        hosts_file: The file with the hosts of this folder for later sessions. If there is one, someone can be asked
            about a host that a command wants: its name must be known although commands have no network.
        store_hosts: Keeps hosts there.
    """

    def __init__(
        self,
        folder: str,
        hidden: Iterable[str],
        readable: Iterable[str],
        plan_files: Iterable[str],
        denied: Iterable[str],
    ) -> None:
        self.folder = os.path.realpath(folder)
        self._hidden = tuple(hidden)
        self._readable = tuple(readable)
        self._plan_files = tuple(plan_files)
        self.denied = tuple(denied)
        self.private: PrivateFolder | None = None
        self.sandboxes: list[Any] = []
        self.needed = False
        self.used: Level | None = None
        self.refused: str | None = None
        self.without: str | None = None
        self.known: dict[str, str] = {}
        self.hosts_file: str | None = None
        self.store_hosts: Callable[[Sequence[str]], None] | None = None

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """The paths that commands can neither read nor change, links resolved.

        What starts them is not among it: the interpreter may be part of a snap.
        """
        expanded = map(os.path.expanduser, (*_list_credentials(self.folder), *self._hidden))
        own = [os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, __file__)]
        paths = dict.fromkeys(map(os.path.realpath, (*expanded, *self._find_denied())))
        paths |= dict.fromkeys([*other_paths(paths)])
        return tuple(path for path in paths if not any(is_below(place, path) for place in own))

    @property
    def unsearched(self) -> list[str]:
        """The patterns of `denied` for which there are too many files to find all that they match."""
        return [pattern for pattern, paths in self._matches.items() if paths is None]

    @cached_property
    def _matches(self) -> dict[str, list[str] | None]:
        full = {
            pattern: os.path.join(self.folder, os.path.expanduser(pattern))
            for pattern in self.denied
        }
        return {pattern: find_matches(path, _MAX_SEARCHED) for pattern, path in full.items()}

    def _find_denied(self) -> Iterator[str]:
        for paths in self._matches.values():
            # Not the working directory itself: then nothing could run in it.
            yield from (path for path in paths or () if not is_below(self.folder, path))

    @cached_property
    def readable(self) -> tuple[str, ...]:
        """Folders below these that they can read nevertheless, links resolved."""
        return tuple(map(os.path.realpath, self._readable))

    @cached_property
    def plan_files(self) -> tuple[str, ...]:
        """The files of the session's plan, links resolved."""
        return tuple(map(os.path.realpath, self._plan_files))

    def resolved(self, place: str) -> str:
        """A folder of a policy as it was when the session first named it, links resolved.

        Later a command may have put a link in its place.

        Raises:
            PolicyError: It is a link of the working directory to a folder outside of that.
        """
        if place not in self.known:
            path = os.path.normpath(os.path.join(self.folder, os.path.expanduser(place)))
            resolved = os.path.realpath(path)
            if is_below(path, self.folder) and not is_below(resolved, self.folder):
                # The policy is the user's, but the author of the repository chose the target.
                problem = (
                    f"'write' contains {place!r}, a link that leads out of the working directory"
                )
                raise PolicyError("write", problem, f"the path itself: {resolved}")
            self.known[place] = resolved
        return self.known[place]
