"""Restore files to their state after a step, from the copies that hooks-backup keeps in a session.

A file is restored only if its present content is one that the session recorded; everything else is listed
with the reason and left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from amplifier_app.sessions.backups import (
    FilePlace,
    FileState,
    backup_records,
    file_at,
    is_inside,
    state_of,
)
from amplifier_app.sessions.conversation import Conversation
from amplifier_support.atomic_write import write_atomically

_LARGEST = 64 * 1024 * 1024


class Restore(NamedTuple):
    """What to do with one file.

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
    """What the records say about one file."""

    def __init__(self) -> None:
        self.now: FileState | None = None  # None: unknown
        self.target: FileState | None = None
        self.is_changed = False
        self.reason = ""


def plan_restore(
    session: Path, conversation: Conversation, step: int, project: str
) -> list[Restore]:
    """What it takes to restore the files that a session changed after a step.

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
            after = state_of(entry.get("after"))
            before = state_of(entry["before"]) if "before" in entry else known.now
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
    return [one for one in plan if one.reason or one.now != one.target]


def restore(session: Path, plan: list[Restore]) -> list[Restore]:
    """Restore the files of a plan; returns it with the reasons of those that failed."""
    done: list[Restore] = []
    for one in plan:
        try:
            if not one.reason:
                one = one._replace(reason=_restore(session, one))
        except OSError as error:
            one = one._replace(reason=error.strerror or str(error))
        done.append(one)
    return done


# Records


def _records(
    session: Path, conversation: Conversation, step: int
) -> Iterator[tuple[Mapping[str, Any], bool | None]]:
    """The records of changes, each with whether it is after the step; None if that is unknown."""
    calls = [call for call in conversation.calls if call.id is not None]
    after = {call.id for call in calls if call.step > step}
    before = {call.id for call in calls if call.step <= step}
    records = backup_records(session)
    last_before = max((n for n, one in enumerate(records) if one.get("call") in before), default=-1)
    is_after = False
    for number, record in enumerate(records):
        undo = record.get("kind") == "undone" and number > last_before
        is_after = is_after or undo or record.get("call") in after
        # Calls of sub-agents have ids of their own, but their order among the others is known.
        unknown = not is_after and number > last_before and record.get("call") not in before
        yield record, None if unknown else is_after


# Files


def _plan_restore(session: Path, path: str, known: _Path, project: str) -> Restore:
    now, target = known.now, known.target
    unknown = FileState(None, 0)
    reason = known.reason
    if not reason and (now is None or target is None):
        reason = "its content at one of the two times is unknown"
    one = Restore(path, now or unknown, target or unknown, reason)
    if not reason and not is_inside(path, project):
        one = one._replace(reason=f"it is outside {project}, or behind a link")
    digest = None if target is None else target.digest
    if not one.reason and digest is not None and _content(session, digest) is None:
        one = one._replace(reason="its copy is gone or damaged")
    return one if one.reason else one._replace(reason=_objection(session, one))


def _objection(session: Path, one: Restore) -> str:
    """Why a file cannot be restored as things are now; empty if it can."""
    try:
        with file_at(one.path) as place:
            return _objection_to(session, one, place)
    except (FileNotFoundError, NotADirectoryError):
        return _objection_to_missing(one)
    except OSError as error:
        return error.strerror or str(error)


def _objection_to_missing(one: Restore) -> str:
    return "" if one.now.digest is None else "it was deleted since"


def _objection_to(session: Path, one: Restore, place: FilePlace) -> str:
    try:
        found = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            return "it is not a regular file"
        if found.st_size > _LARGEST:
            return "it is too large"
        digest = hashlib.sha256(place.content()).hexdigest()
    except FileNotFoundError:
        return _objection_to_missing(one)
    except OSError as error:
        return error.strerror or str(error)
    # What the session has a copy of is not lost.
    known = digest in (one.now.digest, one.target.digest) or _content(session, digest) is not None
    return "" if known else "it was changed since, but not by this session"


def _content(session: Path, digest: str) -> bytes | None:
    """The copy of a content; None if it is gone or damaged."""
    try:
        data = (session / "backups" / "objects" / digest[:2] / digest).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def _restore(session: Path, one: Restore) -> str:
    """Restore one file; returns why it was left alone.

    Raises:
        OSError: The system refused.
    """
    objection = _objection(session, one)
    if objection:
        return objection
    content = None if one.target.digest is None else _content(session, one.target.digest)
    if content is None and one.target.digest is not None:
        return "its copy is gone or damaged"
    with file_at(one.path, create=content is not None) as place:
        objection = _objection_to(session, one, place)
        if objection:
            return objection
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.name, dir_fd=place.folder)
        else:
            mode = one.target.mode
            write_atomically(place.name, content, permissions=mode, folder=place.folder)
    return ""
