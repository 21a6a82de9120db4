"""Copies of files and the record of changes, in a private folder of the user.

backups/
    index.jsonl         two lines for each call that changes files: before and after
    objects/ab/abcd…    contents under their SHA-256

A call that may change files is recorded before it runs (`kind: intent`) and after (`kind: changes`,
with the results). Undoing a turn adds a record (`kind: undone`), and `kind: told` follows once the
model has been informed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amplifier_modules._shared.files import (
    Location,
    PathGuard,
    append_record,
    off_loop,
    open_guarded,
    read_records,
)
from amplifier_modules.hooks_backup.config import INDEX, MODULE_ID
from amplifier_support.files import (
    FOLDER_MODE,
    make_private_folder,
    open_private_in,
    write_atomically,
)
from amplifier_support.named_tuple import NamedTuple

logger = logging.getLogger(__name__)


class State(NamedTuple):
    """A file at one moment.

    Attributes:
        digest: Digest of its content; None if there is no file.
        mode: Its permissions.
        size: In bytes.
    """

    digest: str | None
    mode: int = 0
    size: int = 0

    @property
    def is_there(self) -> bool:
        return self.digest is not None

    @classmethod
    def of_record(cls, value: Any) -> State:
        """Read a state from a record. Raises TypeError or ValueError if it is invalid."""
        digest, mode, size = value
        return cls(None if digest is None else str(digest), int(mode), int(size))


MISSING = State(None)


class Seen(NamedTuple):
    """A file as found.

    Attributes:
        state: Its state. For a file too large to read, the digest only covers its times.
        data: Its content; None if it is missing or too large.
        touched: Replaces the digest of a file that is too large.
    """

    state: State
    data: bytes | None = None
    touched: str | None = None

    def is_(self, state: State) -> bool:
        """Return True if the file is in that state, in either notation."""
        if not state.is_there or not self.state.is_there:
            return state.is_there == self.state.is_there
        return state.digest in (self.state.digest, self.touched)


class Moved(Exception):
    """A link is in a path that had none."""


async def look(location: Location, max_bytes: int) -> Seen:
    """The state at `location` now; reads up to `max_bytes`.

    Raises:
        FileProblem: There is something other than a file.
        OSError: It cannot be read.
    """
    try:
        size = location.stat().st_size
    except FileNotFoundError:
        return Seen(MISSING)
    return await off_loop(min(size, max_bytes), lambda: look_now(location, max_bytes))


def look_now(location: Location, max_bytes: int) -> Seen:
    """Like `look`, for files of any size."""
    try:
        with open_guarded(location) as (descriptor, size):
            return _read_state(descriptor, size, max_bytes)
    except FileNotFoundError:
        return Seen(MISSING)


def _read_state(descriptor: int, size: int, max_bytes: int) -> Seen:
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    touched = f"touched {status.st_mtime_ns}, file {status.st_ino}, {status.st_size} bytes"
    if size <= max_bytes:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
        if len(data) <= max_bytes:
            return Seen(State(compute_digest(data), mode, len(data)), data, touched)
    return Seen(State(touched, mode, size), None, touched)


def compute_digest(data: bytes) -> str:
    """SHA-256 as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def exactly(path: str, *, create_parents: bool = False) -> Location:
    """Locate an absolute path that was found without links, without following any now.

    Raises:
        Moved: A link is in the path.
        OSError: A folder in the path is missing or cannot be entered.
    """
    top = Path(path).anchor
    guard = PathGuard([top], base=top, writing=False, setting="paths")
    location = guard.locate(path, create_parents=create_parents)
    if location.path != path:
        with location:
            raise Moved("its path now leads through a link")
    return location


OBJECTS = "objects"

_DAY = 86_400
_LARGEST_INDEX = 256 * 1024 * 1024
_ROOM = 0.8
"""Share of the limit left after removing the oldest turns, so that they are removed in batches."""


class Full(Exception):
    """There is no space for another copy."""


class Store:
    """The copies of one session.

    Args:
        folder: Returns the folder for the copies. Called with True when something is to be saved;
            with False it may return None if nothing can have been saved yet.
        max_bytes: Bytes of all copies.
        max_age_days: Age at which turns are dropped.
    """

    def __init__(
        self, folder: Callable[[bool], Path | None], max_bytes: int, max_age_days: float
    ) -> None:
        self._find = folder
        self._max_bytes = max_bytes
        self._max_age = max_age_days * _DAY
        self._prepared: Path | None = None
        self._used = 0

    # -- records ---------------------------------------------------------------------------

    def records(self) -> list[dict[str, Any]]:
        """The records, in order.

        Raises:
            OSError: It cannot be read, or another user could have written it.
        """
        folder = self._find(False)
        return [] if folder is None else read_records(folder / INDEX, _LARGEST_INDEX)

    def write_down(self, record: Mapping[str, Any]) -> None:
        """Append a record. Raises OSError."""
        append_record(self._ready() / INDEX, {"time": time.time(), **record})

    # -- contents --------------------------------------------------------------------------

    def put(self, digest: str, data: bytes, turn: str) -> None:
        """Save a content; does nothing if it is already saved.

        Args:
            digest: Digest of `data`.
            data: The content.
            turn: The current turn, whose copies are never removed.

        Raises:
            Full: Not enough space even without the copies of all other turns.
            OSError: It cannot be written.
        """
        path = self._object(self._ready(), digest)
        with contextlib.suppress(OSError):
            if path.stat(follow_symlinks=False).st_size == len(data):
                return
        if self._used + len(data) > self._max_bytes:
            self._drop_old(keep=turn, room=len(data))
            if self._used + len(data) > self._max_bytes:
                raise Full(f"the copies for this prompt alone take {self._max_bytes} bytes")
        make_private_folder(path.parent)
        if path.parent.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(path.parent))
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # The half of one, which a run that was killed left behind.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_private_in(path.parent, path.name, flags), "wb") as file:
            file.write(data)
        self._used += len(data)

    def get(self, digest: str) -> bytes | None:
        """A saved content; None if it is gone or damaged. Raises OSError."""
        try:
            data = self._object(self._ready(), digest).read_bytes()
        except FileNotFoundError:
            return None
        return data if compute_digest(data) == digest else None

    def find_copy(self, digest: str | None) -> str | None:
        """The path of a saved content; None if there is none."""
        folder = self._find(False)
        if folder is None or digest is None:
            return None
        path = self._object(folder, digest)
        return str(path) if path.is_file() else None

    # -- the folder ------------------------------------------------------------------------

    @staticmethod
    def _object(folder: Path, digest: str) -> Path:
        return folder / OBJECTS / digest[:2] / digest

    def _ready(self) -> Path:
        """The folder, created and cleaned up when it is first needed."""
        if self._prepared is None:
            folder = self._find(True)
            assert folder is not None
            for private in (folder, folder / OBJECTS):
                make_private_folder(private)
                if private.is_symlink():
                    raise OSError(f"{private} is a link")
                private.chmod(FOLDER_MODE)
            self._prepared = folder
            self._used = sum(path.stat().st_size for path in _files(folder / OBJECTS))
            self._drop_old(keep=None, room=0)
        return self._prepared

    def _drop_old(self, *, keep: str | None, room: int) -> None:
        """Remove turns that are too old, then the oldest ones until there is enough space."""
        assert self._prepared is not None
        known = read_records(self._prepared / INDEX, _LARGEST_INDEX)
        turns: dict[Any, list[dict[str, Any]]] = {}
        for record in known:
            turns.setdefault(record.get("turn"), []).append(record)
        tight = self._used + room > self._max_bytes
        oldest = time.time() - self._max_age
        left = dict(turns)
        for turn, lines in turns.items():
            if turn == keep:
                continue
            too_old = max(map(_time, lines)) < oldest
            if too_old or (tight and self._size(left.values()) + room > self._max_bytes * _ROOM):
                del left[turn]
        if len(left) < len(turns):
            kept = (record for record in known if record.get("turn") in left)
            text = "".join(json.dumps(record) + "\n" for record in kept)
            write_atomically(self._prepared / INDEX, text.encode("ascii"), durable=False)
        digests = _digests(left.values())
        for path in list(_files(self._prepared / OBJECTS)):
            if path.name not in digests:
                self._used -= path.stat().st_size
                path.unlink()

    def _size(self, turns: Iterable[Iterable[Mapping[str, Any]]]) -> int:
        """Bytes of the copies these turns need."""
        assert self._prepared is not None
        size = 0
        for digest in _digests(turns):
            with contextlib.suppress(OSError):
                size += self._object(self._prepared, digest).stat().st_size
        return size


def remove_older(folder: Path, days: float) -> None:
    """Remove folders that killed runs left in `folder` at least `days` days ago."""
    limit = time.time() - days * _DAY
    with contextlib.suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and entry.stat().st_mtime < limit:
                shutil.rmtree(entry, ignore_errors=True)


def _files(objects: Path) -> Iterable[Path]:
    folders = (folder for folder in objects.glob("??") if not folder.is_symlink())
    return (
        path
        for folder in folders
        for path in folder.glob("*")
        if path.is_file() and not path.is_symlink()
    )


def _time(record: Mapping[str, Any]) -> float:
    value = record.get("time")
    return value if isinstance(value, (int, float)) else 0


def _digests(turns: Iterable[Iterable[Mapping[str, Any]]]) -> set[str]:
    """Every content that the records of these turns refer to."""
    digests: set[str] = set()
    for record in (record for lines in turns for record in lines):
        states: list[Any] = [file.get("before") for file in record.get("files", ())]
        digests |= {state[0] for state in states if state and state[0]}
        digests |= {saved["sha256"] for saved in record.get("saved", ())}
    return digests


@dataclass
class Change:
    """The change of one file in a turn.

    Attributes:
        before: Its state before.
        after: Its state after; None if the run ended before it was known.
        folders: Folders created for it, outermost first.
        why: Why it has no copy; empty if it has one.
        meddled: Something else also changed it during the turn.
    """

    before: State
    after: State | None
    folders: list[str] = field(default_factory=list[str])
    why: str = ""
    meddled: bool = False

    @property
    def is_change(self) -> bool:
        return self.after is None or self.after.digest != self.before.digest

    @property
    def kind(self) -> str:
        """`created`, `deleted` or `changed`."""
        if not self.before.is_there:
            return "created"
        return "changed" if self.after is None or self.after.is_there else "deleted"


@dataclass
class Turn:
    """A turn that changed files.

    Attributes:
        id: Its id.
        prompt: The start of the user's prompt.
        time: Time of its first change, in seconds since the epoch.
        files: Its changes, by absolute path.
        undone: Its changes were undone, as far as possible.
        refused: Paths that were left alone.
    """

    id: str
    prompt: str
    time: float
    files: dict[str, Change] = field(default_factory=dict[str, Change])
    undone: bool = False
    refused: list[str] = field(default_factory=list[str])


@dataclass
class History:
    """The history of a session.

    Attributes:
        turns: The turns that changed files, oldest first.
        last_undone: The last undone turn, if not by force and nothing changed since.
        unreported: Undo records that the model does not know of.
    """

    turns: list[Turn]
    last_undone: Turn | None
    unreported: list[dict[str, Any]]


def read_history(records: Iterable[Mapping[str, Any]]) -> History:
    """The history of a session; invalid records are skipped."""
    turns: dict[str, Turn] = {}
    open_calls: dict[Any, Mapping[str, Any]] = {}
    unreported: list[dict[str, Any]] = []
    last_undone: Turn | None = None
    for record in records:
        try:
            kind, call = record["kind"], record.get("call")
            if kind == "intent":
                _turn(turns, record)
                open_calls[call] = record
            elif kind == "changes":
                open_calls.pop(call, None)
                _add(turns, record)
                last_undone = None if record["files"] else last_undone
            elif kind == "undone":
                turn = _turn(turns, record)
                turn.undone = True
                turn.refused = [str(item["path"]) for item in record["refused"]]
                last_undone = None if record.get("forced") else turn
                if record["restored"] or record["removed"]:
                    unreported.append(dict(record))
            elif kind == "told":
                unreported = []
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s: skipping an invalid record: %s", MODULE_ID, error)
    for record in open_calls.values():
        _add(turns, record)
    changed = [turn for turn in turns.values() if any(c.is_change for c in turn.files.values())]
    for turn in changed:
        turn.files = {path: change for path, change in turn.files.items() if change.is_change}
    return History(changed, last_undone, unreported)


def _turn(turns: dict[str, Turn], record: Mapping[str, Any]) -> Turn:
    turn_id = str(record["turn"])
    if turn_id not in turns:
        turns[turn_id] = Turn(turn_id, str(record.get("prompt") or ""), float(record["time"]))
    return turns[turn_id]


def _add(turns: dict[str, Turn], record: Mapping[str, Any]) -> None:
    files = _turn(turns, record).files
    for entry in record["files"]:
        path = str(entry["path"])
        before = State.of_record(entry["before"])
        after = State.of_record(entry["after"]) if "after" in entry else None
        known = files.get(path)
        if known is None:
            files[path] = Change(
                before, after, list(entry.get("folders", ())), str(entry.get("why", ""))
            )
            continue
        if known.after is not None and before.digest != known.after.digest:
            known.meddled = True
        known.after = after
        known.folders += entry.get("folders", ())
