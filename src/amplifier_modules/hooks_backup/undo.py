"""Undo what a turn did to files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from amplifier_modules._shared.files.guarded_files import FileProblem, write_whole
from amplifier_modules._shared.files.roots import Location, PathError
from amplifier_modules.hooks_backup.calls import reason
from amplifier_modules.hooks_backup.config import MODULE_ID
from amplifier_modules.hooks_backup.file_state import MISSING, Moved, Seen, exactly, look_now
from amplifier_modules.hooks_backup.store import Full, Store
from amplifier_modules.hooks_backup.turns import Change, History, Turn
from amplifier_support.printable import printable_in_tags

_LARGEST_SAVED = 64 * 1024 * 1024
_SHOWN_FILES = 50


class Refused(Exception):
    """A file is left alone; the message says why."""


def pick(history: History, *, force: bool) -> tuple[Turn, list[str]] | None:
    """The turn to undo and its paths, or None.

    With `force`, files the last undo left alone come first.
    """
    last = history.last_undone
    if force and last is not None and last.refused:
        return last, [path for path in last.refused if path in last.files]
    waiting = [turn for turn in history.turns if not turn.undone]
    return (waiting[-1], list(waiting[-1].files)) if waiting else None


def take_back(turn: Turn, paths: Sequence[str], store: Store, force: bool) -> dict[str, list[Any]]:
    """Restore files to their state before `turn`, each independently of the others.

    Returns:
        `restored` and `removed`, lists of paths; `refused`, each a `path` and a `reason`; `saved`,
        each a `path` and the `sha256` of the content that was replaced.

    Raises:
        OSError: A copy cannot be read.
    """
    outcome: dict[str, list[Any]] = {"restored": [], "removed": [], "refused": [], "saved": []}
    for path in paths:
        change = turn.files[path]
        try:
            saved = _take_back(path, change, store, turn.id, force)
        except (Refused, Moved, FileProblem, PathError) as error:
            outcome["refused"].append({"path": path, "reason": str(error)})
        except OSError as error:
            outcome["refused"].append({"path": path, "reason": reason(error)})
        else:
            outcome["restored" if change.before.is_there else "removed"].append(path)
            if saved:
                outcome["saved"].append({"path": path, "sha256": saved})
    created = {folder for path in outcome["removed"] for folder in turn.files[path].folders}
    _remove_folders(sorted(created, key=len, reverse=True))
    return outcome


def _take_back(path: str, change: Change, store: Store, turn: str, force: bool) -> str | None:
    """Restore one file; returns the digest of the replaced content, if it may be missed.

    Raises:
        Refused: The file is left alone.
    """
    if change.why:
        raise Refused(f"no copy was kept: {change.why}")
    try:
        location = exactly(path)
    except (FileNotFoundError, NotADirectoryError):
        if not change.before.is_there:
            return None
        location = exactly(path, create_parents=True)
    with location:
        now = look_now(location, _LARGEST_SAVED)
        if now.is_(change.before):
            return None
        objection = _objection(change, now)
        if objection and not force:
            raise Refused(objection)
        saved = _save(now, store, turn) if objection else None
        _put_back(location, change, store)
    return saved


def _objection(change: Change, now: Seen) -> str:
    """Why the file should be left alone; empty if it can be restored."""
    if change.after is None:
        return "the run ended during the change, so its content may not be from this session"
    if not now.is_(change.after):
        gone = not now.state.is_there
        return "it was deleted since" if gone else "it was changed since, but not by this session"
    return "it was also changed by something else during the turn" if change.meddled else ""


def _save(now: Seen, store: Store, turn: str) -> str | None:
    if now.state.digest is None:
        return None
    if now.data is None:
        raise Refused("its current content is too large to save")
    try:
        store.put(now.state.digest, now.data, turn)
    except Full as error:
        raise Refused(f"cannot save its current content: {error}") from None
    return now.state.digest


def _put_back(location: Location, change: Change, store: Store) -> None:
    if change.before == MISSING:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(location.name, dir_fd=location.dir_fd)
        return
    data = store.get(change.before.digest or "")
    if data is None:
        raise Refused("the copy is gone or damaged")
    write_whole(location, data, change.before.mode)


def _remove_folders(folders: Sequence[str]) -> None:
    """Remove folders that were created for files, if they are empty."""
    for folder in folders:
        with contextlib.suppress(OSError, PathError, Moved), exactly(folder) as location:
            os.rmdir(location.name, dir_fd=location.dir_fd)


def note_for_model(undone: Sequence[Mapping[str, Any]], base: str) -> str:
    """The note for the model on files restored since its last turn."""
    restored: dict[str, str] = {}
    for record in undone:
        restored |= dict.fromkeys(record["restored"], "as it was before")
        restored |= dict.fromkeys(record["removed"], "removed")
    lines = [
        f"- {printable_in_tags(os.path.relpath(path, base))}: {what}"
        for path, what in restored.items()
    ]
    more = len(lines) - _SHOWN_FILES
    lines[_SHOWN_FILES:] = [f"- and {more} more"] if more > 0 else []
    head = "The user has undone changes you made to files. Read them again before you continue:"
    return "\n".join(
        [f'<system-reminder source="{MODULE_ID}">', head, *lines, "</system-reminder>"]
    )
