"""Copies of the folders of a row on a machine without the disk of the batch, kept the same by sending what changed.

A node has `sessions/ID/` for the sessions of its rows and `work/ID/` for their working directories, below a folder of
its own. The driver, the process that runs the batch, has the record itself. A change is one of

    {"path", "mode", "at", "data"}    bytes of a file, Base64, from a position to its end; from 0 it is a new file
    {…, "more"}                       a piece of a new file, which takes the place of the old one with its last piece
    {"path", "link"}                  a symbolic link
    {"path", "mode"}                  a folder
    {"path"}                          there is nothing any more
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.summary import read_metadata
from amplifier_batch.record.folder import LOGS, OF_ONE_MACHINE, WORK
from amplifier_support.files import (
    FOLDER,
    FOLDER_MODE,
    describe_reason,
    folder_below,
    open_regular,
)
from amplifier_support.named_tuple import NamedTuple

Change = dict[str, Any]

SESSIONS = "sessions"
_LOCK = "lock"
_KINDS = (stat.S_ISREG, stat.S_ISLNK, stat.S_ISDIR)
_PIECE = 4_000_000
"""Bytes of a file that are in memory at once."""

_MAX_PART = 4_000_000
"""Characters of changes after which no more are sent together."""

_UNFINISHED = ".amplifier.unfinished"


class _State(NamedTuple):
    inode: int
    size: int
    time: int
    mode: int


_Opened: TypeAlias = tuple[str, _State | None, BinaryIO | str | None]
"""A path, its state if it exists, and the file or the target of the link."""


class Replica:
    """Finds what changed in folders below a root since the last time.

    Args:
        root: The folder with `sessions` and `work`.
        folders: Those to look at, below the root.
        known: Whether what is there now has been sent.
    """

    _opens_all = False

    def __init__(self, root: Path, folders: Iterable[str] = (), *, known: bool = False) -> None:
        self.root = root
        self.folders = dict.fromkeys(folders)
        self._known: dict[str, _State] = self._find_states() if known else {}
        self.expect_repairs()

    def expect_repairs(self) -> None:
        """Send logs as a whole once more: opening a session removes an incomplete last record."""
        for path, state in self._known.items():
            if _is_log(path):
                self._known[path] = state._replace(inode=0)

    def changes(self) -> Iterator[Change]:
        """Find what changed, and return it in order, large files in pieces.

        A change counts as sent when the next one is taken. Those before an error can be applied without the rest.

        Raises:
            SessionError: A file cannot be read; also while the changes are taken.
        """
        now = self._find_states()
        removed = self._known.keys() - now.keys()
        paths = [path for path, state in now.items() if state != self._known.get(path)]
        paths += (path for path in removed if _is_last(path, now, removed))
        # A transcript may be behind the files that its calls have written, and ahead of the session's metadata, but
        # not the other way round.
        paths.sort(key=_rank)
        opened = (self._open(path, now.get(path)) for path in paths)
        return self._read(list(opened) if self._opens_all else opened, removed)

    def _open(self, path: str, state: _State | None) -> _Opened:
        file = self.root / path
        with self._errors(path), contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if state is not None and stat.S_ISREG(state.mode):
                content = os.fdopen(open_regular(file, os.O_RDONLY), "rb")
                # Another file may have taken the place since.
                return path, _state(os.fstat(content.fileno())), content
            is_link = state is not None and stat.S_ISLNK(state.mode)
            return path, state, os.readlink(file) if is_link else None
        return path, None, None

    def _read(self, opened: Iterable[_Opened], removed: Iterable[str]) -> Iterator[Change]:
        for path, state, content in opened:
            if state is None:
                if self._known.pop(path, None) is not None:
                    yield {"path": path}
                continue
            mode = stat.S_IMODE(state.mode)
            if isinstance(content, str):
                yield {"path": path, "link": content}
            elif content is None:
                yield {"path": path, "mode": mode}
            else:
                with content, self._errors(path):
                    at = start = content.seek(_sent(path, state, self._known.get(path)))
                    has_more = True
                    while has_more:
                        # What is appended meanwhile is sent the next time.
                        data = content.read(min(_PIECE, state.size - at))
                        text = base64.b64encode(data).decode()
                        change = {"path": path, "mode": mode, "at": at, "data": text}
                        at += len(data)
                        has_more = bool(data) and at < state.size
                        yield change if start else {**change, "more": has_more}
            self._known[path] = state
        for path in removed:
            self._known.pop(path, None)

    @contextlib.contextmanager
    def _errors(self, path: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            unread = error.filename or self.root / path
            raise SessionError(f"cannot read {unread}: {describe_reason(error)}") from error

    def _find_states(self) -> dict[str, _State]:
        with self._errors("."):
            return dict(self._scan())

    def _scan(self) -> Iterator[tuple[str, _State]]:
        for folder in list(self.folders):
            for place, folders, names in os.walk(self.root / folder, onerror=_require_readable):
                here = os.path.relpath(place, self.root)
                for name in (*folders, *names, "."):
                    path = os.path.normpath(os.path.join(here, name))
                    with contextlib.suppress(FileNotFoundError):
                        state = _state(os.lstat(self.root / path))
                        is_kept = any(kind(state.mode) for kind in _KINDS)
                        if is_kept and not _is_lock(path) and name != _UNFINISHED:
                            yield path, state


class TopFiles(Replica):
    """Finds what changed in the files of a batch, except its sessions and working directories.

    Args:
        root: The folder of the batch.
        known: Whether what is there now has been sent.
    """

    _opens_all = True
    """True if all files are sent as they are when `changes` is called, whatever replaces them later."""

    def expect_repairs(self) -> None:
        """Do nothing: no record is sent before it is complete."""

    def _scan(self) -> Iterator[tuple[str, _State]]:
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and entry.name not in OF_ONE_MACHINE:
                    yield entry.name, _state(entry.stat(follow_symlinks=False))


def split_changes(changes: Iterable[Change]) -> Iterator[tuple[list[Change], bool]]:
    """Yield changes in lists of limited size, each with True if there are more of them."""
    part, size = list[Change](), 0
    for change in changes:
        if size > _MAX_PART:
            yield part, True
            part, size = [], 0
        part.append(change)
        size += len(change.get("data", "")) + len(json.dumps({**change, "data": ""}))
    if part:
        yield part, False


def _require_readable(error: OSError) -> None:
    """Raise the error of a folder that exists and cannot be listed."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _state(status: os.stat_result) -> _State:
    if stat.S_ISDIR(status.st_mode):
        return _State(0, 0, 0, status.st_mode)
    return _State(status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


def _sent(path: str, state: _State, before: _State | None) -> int:
    """Return how many bytes of a file need not be sent again."""
    if before is None or not _is_log(path) or before.inode != state.inode:
        return 0
    return before.size if before.size <= state.size else 0


def _is_log(path: str) -> bool:
    """Return True for the logs of a batch and its sessions, which are only ever appended to, or replaced by others."""
    return path in LOGS or (path.startswith(f"{SESSIONS}/") and path.endswith(".jsonl"))


def _is_last(path: str, now: Mapping[str, _State], removed: Set[str]) -> bool:
    """Return True if a removed path does not go together with its folder."""
    parent = os.path.dirname(path)
    return parent not in removed and (parent not in now or stat.S_ISDIR(now[parent].mode))


def _rank(path: str) -> tuple[bool, bool]:
    return path.startswith(f"{SESSIONS}/"), path.endswith("/metadata.json")


def _is_lock(path: str) -> bool:
    """Return True for the lock of a session, which counts on one machine only."""
    return path.startswith(f"{SESSIONS}/") and path.count("/") == 2 and path.endswith(f"/{_LOCK}")


def find_folders(root: Path, session: str, *, has_own: bool) -> list[str]:
    """Return the folders of a row that exist, by the id of its session: also those of its sub-sessions.

    Args:
        root: The folder with `sessions` and `work`.
        session: The id.
        has_own: Whether the row has a working directory of its own.
    """
    sessions, waiting = dict[str, None](), [session]
    while waiting:
        name = waiting.pop()
        if name not in sessions and (root / SESSIONS / name).is_dir():
            sessions[name] = None
            noted = read_metadata(root / SESSIONS / name).values.get("sub_sessions")
            waiting += map(str, noted) if isinstance(noted, list) else ()
    return [
        *(f"{SESSIONS}/{name}" for name in sessions),
        *([f"{WORK}/{session}"] if has_own else ()),
    ]


def apply_changes(root: Path, changes: Sequence[Change], *, durable: bool = True) -> None:
    """Make a copy the same.

    Links are not followed: a row may have created them anywhere.

    Args:
        root: The folder of the copy.
        changes: What changed.
        durable: Whether it is on disk when this returns.

    Raises:
        SessionError: It cannot be written, or a path leads out of the folder.
    """
    path = ""
    try:
        top = os.open(root, FOLDER)
        try:
            for change in changes:
                path = change["path"]
                parent, _, name = path.rpartition("/")
                if name in ("", ".", ".."):
                    raise OSError(errno.EINVAL, "it is not a path below a folder")
                with folder_below(top, parent, create=True) as folder:
                    _apply(change, name, folder, durable)
        finally:
            os.close(top)
    except OSError as error:
        raise SessionError(f"cannot write {root / path}: {describe_reason(error)}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(f"a change of {root / str(path)} is damaged") from error


def _apply(change: Change, name: str, folder: int, durable: bool) -> None:
    if "data" in change:
        data, at = base64.b64decode(change["data"]), change["at"]
        target = _UNFINISHED if not at or "more" in change else name
        if not at:
            _remove(_UNFINISHED, folder)
        flags = os.O_WRONLY | os.O_NOFOLLOW | (0 if at else os.O_CREAT)
        with open(os.open(target, flags, 0o600, dir_fd=folder), "wb") as file:
            if os.fstat(file.fileno()).st_size < at:
                raise OSError(errno.EINVAL, "what comes before the change is missing")
            file.seek(at)
            file.write(data)
            file.truncate()
            os.fchmod(file.fileno(), change["mode"] & 0o777)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if target == _UNFINISHED and not change.get("more"):
            if _is_folder(name, folder):
                _remove(name, folder)
            os.rename(_UNFINISHED, name, src_dir_fd=folder, dst_dir_fd=folder)
    elif "mode" not in change or not _is_folder(name, folder):
        _remove(name, folder)
        if "link" in change:
            os.symlink(change["link"], name, dir_fd=folder)
        elif "mode" in change:
            os.mkdir(name, FOLDER_MODE, dir_fd=folder)


def _is_folder(name: str, folder: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if _is_folder(name, folder):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
