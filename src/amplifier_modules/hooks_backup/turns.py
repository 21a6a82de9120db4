"""The turns of a session, from its records.

A call that may change files is recorded before it runs (`kind: intent`) and after (`kind: changes`,
with the results). Undoing a turn adds a record (`kind: undone`), and `kind: told` follows once the
model has been informed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amplifier_modules.hooks_backup.config import MODULE_ID
from amplifier_modules.hooks_backup.file_state import State

logger = logging.getLogger(__name__)


@dataclass
class Change:
    """What a turn did to one file.

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
