"""The copies that hooks-backup keeps in a session, compared with the files on disk.

Reads `backups/index.jsonl`, whose format the page of hooks-backup describes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from amplifier_app.base.errors import SessionError
from amplifier_support import journal
from amplifier_support.below import folder_at, is_below
from amplifier_support.private_files import open_regular

_LARGEST_COMPARED = 10 * 1024 * 1024
_MOST_COMPARED = 200
_LARGEST_INDEX = 4 * 1024 * 1024


class FileState(NamedTuple):
    """A file at one moment: the SHA-256 of its content, None without a file, and its mode."""

    digest: str | None
    mode: int


def backup_records(session: Path) -> list[dict[str, Any]]:
    """The changes on record in a session's folder, in order; none without copies.

    Raises:
        SessionError: They cannot be read.
    """
    return [one for one in _read(session / "backups" / "index.jsonl") if _is_valid(one)]


def _read(index: Path) -> Iterator[dict[str, Any]]:
    """The changes on record. An undone turn counts as changes back to the state before it."""
    try:
        records = journal.readable_records(index.read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise SessionError(f"cannot read {index}: {error.strerror}") from error
    turns: dict[Any, dict[str, Any]] = {}
    running: dict[Any, dict[str, Any]] = {}
    for record in records:
        of_turn = turns.setdefault(str(record.get("turn")), {})
        if record.get("kind") == "intent":
            running[record.get("call")] = record
        if record.get("kind") == "changes" and isinstance(record.get("files"), list):
            running.pop(record.get("call"), None)
            for entry in record["files"]:
                if isinstance(entry, dict):
                    of_turn.setdefault(str(entry.get("path")), entry.get("before"))
            yield record
        elif record.get("kind") == "undone":
            undone = [*(record.get("restored") or ()), *(record.get("removed") or ())]
            yield {
                "kind": "undone",
                "files": [{"path": one, "after": of_turn.get(str(one))} for one in undone],
            }
    # The session ended during these calls; their changes are unknown.
    yield from running.values()


def _is_valid(record: Mapping[str, Any]) -> bool:
    files = record.get("files")
    return isinstance(files, list) and all(
        isinstance(entry, dict) and isinstance(cast("dict[str, Any]", entry).get("path"), str)
        for entry in cast("list[Any]", files)
    )


def state_of(value: object) -> FileState | None:
    """A state as hooks-backup records it; None if it is unknown."""
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    if len(parts) < 2 or not isinstance(parts[1], int):
        return None
    digest = parts[0]
    if digest is not None and not (isinstance(digest, str) and len(digest) == 64):
        return None
    return FileState(digest, parts[1] & 0o777)


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is below a folder and goes through no link."""
    parent = os.path.dirname(path)
    return (
        os.path.isabs(path)
        and os.path.normpath(path) == path
        and os.path.realpath(parent) == parent
        and is_below(parent, folder)
    )


class FilePlace(NamedTuple):
    """A file in its folder, which stays open: no link put there meanwhile is followed."""

    folder: int | None
    name: str

    def content(self) -> bytes:
        with open(open_regular(self.name, os.O_RDONLY, dir_fd=self.folder), "rb") as file:
            return file.read()


@contextlib.contextmanager
def file_at(path: str, *, create: bool = False) -> Generator[FilePlace]:
    parent, name = os.path.split(path)
    with folder_at(parent, create=create) as folder:
        yield FilePlace(folder, path if folder is None else name)


def files_changed_since(session: Path, project: str) -> list[str]:
    """The files that a session changed and that have changed again, relative to its directory.

    Files that are large or of unknown content are left out, and so is a session with very many changes.

    Args:
        session: The folder of the session.
        project: The directory it worked in; files elsewhere are left out.
    """
    index = session / "backups" / "index.jsonl"
    try:
        records = backup_records(session) if index.stat().st_size <= _LARGEST_INDEX else []
    except (OSError, SessionError):
        return []
    last: dict[str, FileState | None] = {}
    for record in records:
        for entry in cast("list[dict[str, Any]]", record["files"]):
            last[str(entry["path"])] = state_of(entry.get("after"))
    folder = os.path.realpath(project)
    known = [
        (path, state)
        for path, state in sorted(last.items())
        if state is not None and is_inside(path, folder)
    ]
    changed = [path for path, state in known[:_MOST_COMPARED] if _has_changed(path, state)]
    return [os.path.relpath(path, folder) for path in changed]


def _has_changed(path: str, state: FileState) -> bool:
    """Whether a file has different content; False if that cannot be determined."""
    try:
        with file_at(path) as place:
            found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) or state.digest is None:
                return True
            if found.st_size > _LARGEST_COMPARED:
                return False
            return hashlib.sha256(place.content()).hexdigest() != state.digest
    except (FileNotFoundError, NotADirectoryError):
        return state.digest is not None
    except OSError:
        return False
