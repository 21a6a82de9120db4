"""Copies of files and the record of changes, in a private folder of the user.

backups/
    index.jsonl         two lines for each call that changes files: before and after
    objects/ab/abcd…    contents under their SHA-256
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from amplifier_modules._shared.files import records
from amplifier_modules.hooks_backup.config import INDEX
from amplifier_modules.hooks_backup.file_state import digest_of
from amplifier_support.atomic_write import write_atomically
from amplifier_support.private_files import FOLDER_MODE, make_private_folder, open_private_in

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
        return [] if folder is None else records.read(folder / INDEX, _LARGEST_INDEX)

    def write_down(self, record: Mapping[str, Any]) -> None:
        """Append a record. Raises OSError."""
        records.append(self._ready() / INDEX, {"time": time.time(), **record})

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
        return data if digest_of(data) == digest else None

    def copy_of(self, digest: str | None) -> str | None:
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
        known = records.read(self._prepared / INDEX, _LARGEST_INDEX)
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
            self._rewrite([record for record in known if record.get("turn") in left])
        wanted = _digests(left.values())
        for path in list(_files(self._prepared / OBJECTS)):
            if path.name not in wanted:
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

    def _rewrite(self, kept: Iterable[Mapping[str, Any]]) -> None:
        assert self._prepared is not None
        lines = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self._prepared / INDEX, lines.encode("ascii"), durable=False)


def remove(folder: Path) -> None:
    """Remove the copies of a session that can never be resumed."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_older(folder: Path, days: float) -> None:
    """Remove folders that killed runs left in `folder` at least `days` days ago."""
    limit = time.time() - days * _DAY
    with contextlib.suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink() and entry.stat().st_mtime < limit:
                remove(entry)


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
    found: set[str] = set()
    for record in (record for lines in turns for record in lines):
        states: list[Any] = [file.get("before") for file in record.get("files", ())]
        found |= {state[0] for state in states if state and state[0]}
        found |= {saved["sha256"] for saved in record.get("saved", ())}
    return found
