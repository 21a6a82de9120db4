"""The copies of files that hooks-backup keeps in a session: compare them with the files on disk, and restore them.

Reads `backups/index.jsonl`, whose format the page of hooks-backup describes. A file is restored to its state
after a step only if its present content is one that the session recorded; everything else is listed with
the reason and left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import read_records
from amplifier_app.sessions.conversation import Conversation
from amplifier_support.files import (
    describe_reason,
    folder_at,
    is_below,
    open_regular,
    write_atomically,
)
from amplifier_support.named_tuple import NamedTuple

_LARGEST_COMPARED = 10 * 1024 * 1024
_MAX_COMPARED = 200
_LARGEST_INDEX = 4 * 1024 * 1024


class FileState(NamedTuple):
    """A file at one moment: the SHA-256 of its content, None without a file, and its mode."""

    digest: str | None
    mode: int


def _backup_records(session: Path) -> list[dict[str, Any]]:
    """The changes on record in a session's folder, in order; none without copies.

    Raises:
        SessionError: They cannot be read.
    """
    return [record for record in _read(session / "backups" / "index.jsonl") if _is_valid(record)]


def _read(index: Path) -> Iterator[dict[str, Any]]:
    """The changes on record. An undone turn counts as changes back to the state before it."""
    turns: dict[Any, dict[str, Any]] = {}
    running: dict[Any, dict[str, Any]] = {}
    for record in read_records(index):
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
                "files": [{"path": path, "after": of_turn.get(str(path))} for path in undone],
            }
    # The session ended during these calls; their changes are unknown.
    yield from running.values()


def _is_valid(record: Mapping[str, Any]) -> bool:
    files = record.get("files")
    return isinstance(files, list) and all(
        isinstance(entry, dict) and isinstance(cast("dict[str, Any]", entry).get("path"), str)
        for entry in cast("list[Any]", files)
    )


def _parse_state(value: object) -> FileState | None:
    """A state as hooks-backup records it; None if it is unknown."""
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    if len(parts) < 2 or not isinstance(parts[1], int):
        return None
    digest = parts[0]
    if digest is not None and not (isinstance(digest, str) and len(digest) == 64):
        return None
    return FileState(digest, parts[1] & 0o777)


def is_inside(path: str, folder: str) -> bool:
    """Return True if a path is below a folder and goes through no link."""
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
        records = _backup_records(session) if index.stat().st_size <= _LARGEST_INDEX else []
    except (OSError, SessionError):
        return []
    last: dict[str, FileState | None] = {}
    for record in records:
        for entry in cast("list[dict[str, Any]]", record["files"]):
            last[str(entry["path"])] = _parse_state(entry.get("after"))
    folder = os.path.realpath(project)
    known = [
        (path, state)
        for path, state in sorted(last.items())
        if state is not None and is_inside(path, folder)
    ]
    changed = [path for path, state in known[:_MAX_COMPARED] if _has_changed(path, state)]
    return [os.path.relpath(path, folder) for path in changed]


def _has_changed(path: str, state: FileState) -> bool:
    """Return True if a file has different content; False if that cannot be determined."""
    try:
        with file_at(path) as place:
            status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or state.digest is None:
                return True
            if status.st_size > _LARGEST_COMPARED:
                return False
            return hashlib.sha256(place.content()).hexdigest() != state.digest
    except (FileNotFoundError, NotADirectoryError):
        return state.digest is not None
    except OSError:
        return False


_LARGEST = 64 * 1024 * 1024


class Restore(NamedTuple):
    """The action for one file.

    Attributes:
        path: Its absolute path.
        now: The state it must have now.
        target: The state it gets.
        reason: Why it is left alone; empty if it can be restored.
    """

    path: str
    now: FileState
    target: FileState
    reason: str = ""

    @property
    def action(self) -> str:
        """`restore` or `remove`; `skip` if it is left alone."""
        if self.reason:
            return "skip"
        return "restore" if self.target.digest is not None else "remove"


class _Path:
    """The records of one file."""

    def __init__(self) -> None:
        self.now: FileState | None = None  # None: unknown
        self.target: FileState | None = None
        self.is_changed = False
        self.reason = ""


def plan_restore(
    session: Path, conversation: Conversation, step: int, project: str
) -> list[Restore]:
    """Return the actions that restore the files that a session changed after a step.

    Args:
        session: The folder of the session.
        conversation: Its conversation.
        step: The step after which the files were as wanted.
        project: The directory it worked in; files elsewhere are left alone.

    Raises:
        SessionError: The records cannot be read.
    """
    paths: dict[str, _Path] = {}
    for record, is_after in _records(session, conversation, step):
        for entry in cast("list[dict[str, Any]]", record["files"]):
            known = paths.setdefault(str(entry["path"]), _Path())
            after = _parse_state(entry.get("after"))
            before = _parse_state(entry["before"]) if "before" in entry else known.now
            if is_after is None:
                known.reason = "a sub-agent changed it, before or after this step"
            elif is_after and not known.is_changed:
                known.is_changed, known.target = True, before
                if entry.get("why"):
                    known.reason = f"no copy was kept: {entry['why']}"
            known.now = after
    plan = [
        _plan_restore(session, path, known, os.path.realpath(project))
        for path, known in sorted(paths.items())
        if known.is_changed or known.reason
    ]
    return [action for action in plan if action.reason or action.now != action.target]


def restore(session: Path, plan: list[Restore]) -> list[Restore]:
    """Restore the files of a plan; returns it with the reasons of those that failed."""
    done: list[Restore] = []
    for action in plan:
        try:
            if not action.reason:
                action = action._replace(reason=_restore(session, action))
        except OSError as error:
            action = action._replace(reason=describe_reason(error))
        done.append(action)
    return done


# Records


def _records(
    session: Path, conversation: Conversation, step: int
) -> Iterator[tuple[Mapping[str, Any], bool | None]]:
    """The records of changes, each with whether it is after the step; None if that is unknown."""
    calls = [call for call in conversation.calls if call.id is not None]
    after = {call.id for call in calls if call.step > step}
    before = {call.id for call in calls if call.step <= step}
    records = _backup_records(session)
    last_before = max(
        (n for n, entry in enumerate(records) if entry.get("call") in before), default=-1
    )
    is_after = False
    for number, record in enumerate(records):
        undo = record.get("kind") == "undone" and number > last_before
        is_after = is_after or undo or record.get("call") in after
        # Calls of sub-agents have ids of their own, but their order among the others is known.
        unknown = not is_after and number > last_before and record.get("call") not in before
        yield record, None if unknown else is_after


# Files


def _plan_restore(session: Path, path: str, known: _Path, project: str) -> Restore:
    unknown = FileState(None, 0)
    action = Restore(path, known.now or unknown, known.target or unknown, known.reason)
    if known.reason:
        return action
    digest = action.target.digest
    if known.now is None or known.target is None:
        reason = "its content at one of the two times is unknown"
    elif not is_inside(path, project):
        reason = f"it is outside {project}, or behind a link"
    elif digest is not None and _content(session, digest) is None:
        reason = "its copy is gone or damaged"
    else:
        reason = _objection(session, action)
    return action._replace(reason=reason)


def _objection(session: Path, action: Restore, at: FilePlace | None = None) -> str:
    """Why a file, perhaps in a folder that is open, cannot be restored as things are now; empty if it can."""
    try:
        with file_at(action.path) if at is None else contextlib.nullcontext(at) as place:
            status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return "it is not a regular file"
            if status.st_size > _LARGEST:
                return "it is too large"
            digest = hashlib.sha256(place.content()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return "" if action.now.digest is None else "it was deleted since"
    except OSError as error:
        return describe_reason(error)
    # What the session has a copy of is not lost.
    known = (
        digest in (action.now.digest, action.target.digest) or _content(session, digest) is not None
    )
    return "" if known else "it was changed since, but not by this session"


def _content(session: Path, digest: str) -> bytes | None:
    """The copy of a content; None if it is gone or damaged."""
    try:
        data = (session / "backups" / "objects" / digest[:2] / digest).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _restore(session: Path, action: Restore) -> str:
    """Restore one file; returns why it was left alone.

    Raises:
        OSError: The system refused.
    """
    objection = _objection(session, action)
    if objection:
        return objection
    content = None if action.target.digest is None else _content(session, action.target.digest)
    if content is None and action.target.digest is not None:
        return "its copy is gone or damaged"
    with file_at(action.path, create=content is not None) as place:
        objection = _objection(session, action, place)
        if objection:
            return objection
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.name, dir_fd=place.folder)
        else:
            mode = action.target.mode
            write_atomically(place.name, content, permissions=mode, folder=place.folder)
    return ""
