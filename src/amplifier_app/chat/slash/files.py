"""`/diff`: the file changes of the last prompt or of the session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from amplifier_app.base.errors import AppError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.layout import lines
from amplifier_app.chat.slash.registry import Chat, Reply, command, parse_choice
from amplifier_app.chat.slash.undo import of_copies
from amplifier_app.render.diff import FileDiff, compare, files_lines, summary
from amplifier_support.session_capabilities import UNDO_LIST

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
        raise AppError(f"cannot compare: {one_line(str(error), 400)}") from error
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
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
