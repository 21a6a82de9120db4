"""`/diff` and `/undo`: the file changes of the last prompt or of the session, and reverting them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from amplifier_app.base.errors import AppError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.layout import lines
from amplifier_app.chat.slash.registry import (
    Chat,
    Reply,
    ask_module,
    command,
    describe_error,
    parse_choice,
)
from amplifier_app.render.diff import FileDiff, compare, files_lines, summary
from amplifier_app.runtime import describe
from amplifier_support.clock import utc_time
from amplifier_support.session_capabilities import UNDO, UNDO_LIST, Capability

# -- /undo: revert the file changes of the last prompt, using the copies a module keeps --


_Function = TypeVar("_Function")

_MAX_SHOWN = 50


@command(
    "/undo",
    "Revert file changes of the last prompt",
    usage="[list|force]",
    complete=lambda chat, argument: (
        ("list", "prompts that can be undone"),
        ("force", "also overwrite files changed since"),
    ),
)
async def undo(chat: Chat, argument: str) -> Reply:
    argument = parse_choice("/undo", argument, ("", "list", "force"))
    capability = UNDO_LIST if argument == "list" else UNDO
    function = of_copies(chat, capability, "undo")
    try:
        answer = await ask_module(function, **({"force": True} if argument == "force" else {}))
    # A module may raise anything; the chat continues.
    except Exception as error:
        return f"Nothing was undone: {describe_error(error)}"
    if argument == "list":
        return _list(answer)
    return _describe(answer) if answer else "No file changes to undo."


def of_copies(chat: Chat, capability: Capability[_Function], doing: str) -> _Function:
    """Return a capability of the module that keeps copies of changed files.

    Raises:
        AppError: There is none.
    """
    function = capability.of(chat.session.session.coordinator)
    if function is None:
        raise AppError(
            f"cannot {doing}: no module in this session keeps copies of changed files",
            hint="Add hooks-backup to the plan: amplifier module add hooks-backup",
        )
    return function


def _describe(done: Mapping[str, Any]) -> str:
    refused = done.get("refused") or []
    rows = [(how, _path(path)) for how in ("restored", "removed") for path in done.get(how) or []]
    rows += [
        ("skipped", f"{_path(item['path'])}: {one_line(str(item['reason']), 200)}")
        for item in refused
    ]
    head = "Undone" if len(rows) > len(refused) else "Nothing was undone"
    lines = [f"{head}: {_turn(done)}", *_rows(rows)]
    if refused:
        lines.append("Use /undo force to restore the skipped files as well, where a copy exists.")
    left = done.get("left")
    if left:
        lines.append(f"{describe.count(left, 'earlier prompt')} can be undone.")
    return "\n".join(lines)


def _list(turns: Any) -> str:
    lines: list[str] = []
    for turn in turns or []:
        undone = ", undone" if turn.get("undone") else ""
        lines.append(f"{_turn(turn)}{undone}")
        files = turn.get("files") or []
        lines += _rows([(str(file["change"]), _path(file["path"])) for file in files])
    return "\n".join(lines) or "No prompt has changed files."


def _turn(turn: Mapping[str, Any]) -> str:
    time: Any = turn.get("time")
    prompt = one_line(str(turn.get("prompt") or ""), 80) or "a prompt"
    when = ""
    if isinstance(time, int | float) and time:
        when = f" ({utc_time(time).astimezone():%Y-%m-%d %H:%M})"
    return f"{prompt}{when}"


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    lines = [f"  {what:<9} {text}" for what, text in rows[:_MAX_SHOWN]]
    more = len(rows) - _MAX_SHOWN
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _path(path: Any) -> str:
    return one_line(_relative(str(path)), 200)


# -- /diff: the file changes of the last prompt or of the session ------------------------


_LARGEST = 1_000_000
"""Bytes of the largest file that is compared."""


class _Diffs:
    """Diffs as wide as the terminal."""

    def __init__(self, files: list[FileDiff]) -> None:
        self._files = files

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in files_lines(self._files, options.max_width):
            yield Text.from_ansi(line)


@command(
    "/diff",
    "File changes of the last prompt, or of the session",
    usage="[session]",
    during_turn=True,
    complete=lambda chat, argument: (("session", "all prompts of this session"),),
)
async def diff(chat: Chat, argument: str) -> Reply:
    whole = parse_choice("/diff", argument, ("", "session")) == "session"
    listing = of_copies(chat, UNDO_LIST, "compare")
    try:
        turns = [turn for turn in listing() if not turn.get("undone")]
    # A module may raise anything; the chat continues.
    except Exception as error:
        raise AppError(f"cannot compare: {describe_error(error)}") from error
    files, skipped = [], []
    for path, copy in _first_copies(turns if whole else turns[:1]):
        name = _relative(path)
        old, new = _text(copy), _text(path)
        if old is None or new is None:
            skipped.append(f"{name}: not a text file, too large, or without a copy")
        elif old != new:
            files.append(compare(old, new, name))
    if not files and not skipped:
        return "No file changes."
    return lines(_Diffs(files), *skipped, *([summary(files)] if len(files) > 1 else []))


def _first_copies(turns: list[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """Yield each changed file with the copy from before its first change; empty if it was new."""
    found: dict[str, str | None] = {}
    for turn in turns:  # latest first
        for file in turn.get("files") or []:
            found[str(file["path"])] = "" if file["change"] == "created" else file.get("copy")
    yield from sorted(found.items())


def _text(path: str | None) -> str | None:
    """Return the text of a file, empty if there is none; None if it cannot be compared."""
    if path is None:
        return None
    try:
        if not path or not os.path.lexists(path):
            return ""
        if os.path.getsize(path) > _LARGEST:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _relative(path: str) -> str:
    """Return a path relative to the working directory if it is inside it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
