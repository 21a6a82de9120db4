"""`/undo`: takes back what the last turn did to files, with what a module keeps of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from amplifier_app.base.sanitize import one_line

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

SUMMARY = (
    "Take back what the last turn did to files; 'list' shows the turns, 'force' spares nothing."
)

_MOST_SHOWN = 50
_NO_MODULE = (
    "Nothing keeps copies of changed files in this session. Add hooks-backup to the plan's hooks: "
    "amplifier module add hooks-backup"
)


async def undo(session: OpenSession, argument: str) -> str:
    """Carry out `/undo`, `/undo force` or `/undo list`; returns what to show."""
    capability = session.session.coordinator.get_capability
    name = {"": "backup.undo", "force": "backup.undo", "list": "backup.list"}.get(argument)
    if name is None:
        return f"/undo takes 'list' or 'force', not {one_line(argument, 40)!r}."
    asked = capability(name)
    if asked is None:
        return _NO_MODULE
    try:
        answer = asked(force=True) if argument == "force" else asked()
        if inspect.isawaitable(answer):
            answer = await answer
    # The boundary to a module: whatever it raises, the chat goes on.
    except Exception as error:
        return f"Nothing was undone: {one_line(str(error), 400) or type(error).__name__}"
    if argument == "list":
        return _listed(answer)
    return _told(answer) if answer else "No turn has changed files that could be put back."


def _told(done: Mapping[str, Any]) -> str:
    refused = done.get("refused") or []
    rows = [("restored", _path(path)) for path in done.get("restored") or []]
    rows += [("removed", _path(path)) for path in done.get("removed") or []]
    rows += [
        ("left", f"{_path(item['path'])}: {one_line(str(item['reason']), 200)}") for item in refused
    ]
    head = "Undone" if len(rows) > len(refused) else "Nothing was undone"
    lines = [f"{head}: {_turn(done)}", *_rows(rows)]
    if refused:
        lines.append("/undo force puts back what was left, where there is a copy.")
    left = done.get("left")
    if left:
        lines.append(f"{left} earlier {'turn' if left == 1 else 'turns'} can be undone.")
    return "\n".join(lines)


def _listed(turns: Any) -> str:
    lines: list[str] = []
    for turn in turns or []:
        undone = ", undone" if turn.get("undone") else ""
        lines.append(f"{_turn(turn)}{undone}")
        files = turn.get("files") or []
        lines += _rows([(str(file["change"]), _path(file["path"])) for file in files])
    return "\n".join(lines) or "No turn has changed files."


def _turn(turn: Mapping[str, Any]) -> str:
    time = turn.get("time")
    prompt = one_line(str(turn.get("prompt") or ""), 80) or "a turn"
    when = f" ({datetime.fromtimestamp(time):%Y-%m-%d %H:%M})" if time else ""
    return f"{prompt}{when}"


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    lines = [f"  {what:<9} {text}" for what, text in rows[:_MOST_SHOWN]]
    more = len(rows) - _MOST_SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _path(path: Any) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(str(path))
    return one_line(str(path) if relative.startswith("..") else relative, 200)
