"""A finished tool call on a terminal: one line, and the part of its result worth a look."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from amplifier_app.base.sanitize import one_line
from amplifier_app.render.ansi import cells, clip, paint, wrapped
from amplifier_app.render.diff import FileDiff, diff_lines, parse, summary
from amplifier_app.render.finished_call import FinishedCall
from amplifier_app.render.pictures import image_blocks
from amplifier_app.runtime import describe
from amplifier_support.fields import field_of

_MOST_LINES = 2000
RESULT_LINES = 4
FAILED_LINES = 12
CHANGED_LINES = 12
"""Lines shown of a result, of that of a failed call, and changed lines shown of an edit."""

_INDENT = "    "
_NARROWEST_ABOUT = 12
_NARROW = 60
_EXIT_CODE = re.compile(r"\n?\[(exit code -?\d+)\]\s*\Z")
_CONTENT_TOOLS = ("read_file", "write_file", "todo")
"""Tools whose result repeats their input, or is only for the model."""

_TODO_MARKS = {"completed": "☑", "in_progress": "▸"}


class Shown(NamedTuple):
    """A finished call as it is drawn.

    Attributes:
        lines: Its line, and the lines below it.
        is_folded: Whether part of its result is not shown.
    """

    lines: list[str]
    is_folded: bool


def draw_call(
    call: FinishedCall,
    width: int,
    link: Callable[[str, str], str] | None = None,
    *,
    whole: bool = False,
    was_seen: bool = False,
) -> Shown:
    """Draw a finished call in lines of at most `width` cells.

    Args:
        call: The call.
        width: Cells per line.
        link: Returns a text as a link to a file.
        whole: Show all of the result.
        was_seen: The user has seen the changes of the call; they are only counted.
    """
    notes = [describe.duration(call.seconds)]
    body: list[str] = []
    is_folded = False
    diff = [] if call.has_failed else parse(call.output)
    if call.is_denied:
        by_user = call.output == describe.DENIED_BY_USER
        notes = [describe.DENIED_BY_USER if by_user else "denied"]
        reason = describe.first_sentence(call.output).removeprefix("denied: ")
        reason = "" if by_user else reason
        body = [paint(line, "dim") for line in _rows(reason, width, 2)]
    elif call.was_skipped:
        first, _, reason = call.output.partition(": ")
        notes, body = [first], [paint(line, "dim") for line in _rows(reason, width, 2)]
    elif diff:
        notes.insert(0, _change_count(diff))
        body = [] if was_seen else _changes(diff, width)
    else:
        text, exit_code = _without_exit_code(call.output)
        if exit_code and call.has_failed:
            notes.append(exit_code)
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if whole:
            shown, style = _rows("\n".join(lines), width, _MOST_LINES), "dim"
        elif call.has_failed:
            shown, style = _rows("\n".join(lines), width, FAILED_LINES, tail=True), ""
        elif describe.tool_name(call.data) in _CONTENT_TOOLS:
            shown, style = [], "dim"
        else:
            tail = "command" in call.input
            part = lines[-RESULT_LINES:] if tail else lines[:RESULT_LINES]
            shown, style = [clip(_untabbed(line), width - len(_INDENT)) for line in part], "dim"
        body = [paint(line, style) for line in shown]
        content = call.input.get("content")
        if describe.tool_name(call.data) == "write_file" and isinstance(content, str):
            notes.insert(0, describe.count(len(content.splitlines()), "line"))
        note = _line_count(len(lines), len(shown), call, short=width < _NARROW)
        is_folded = bool(note)
        notes += [note] if note else []
    body += [paint(line, "dim") for line in (*_checklist(call, width), *image_lines(call.data))]
    mark = paint("✗", "red") if call.has_failed else paint("✓", "green")
    head = _head(mark, call, " · ".join(notes), width)
    path = describe.file_of(call.data)
    if link is not None and path and f" {path} " in head and os.path.exists(path):
        head = head.replace(path, link(path, path), 1)
    return Shown([head, *(f"{_INDENT}{line}".rstrip() for line in body)], is_folded)


def _head(mark: str, call: FinishedCall, notes: str, width: int) -> str:
    about = call.about()
    room = width - cells(notes) - 5
    return clip(f"{mark} {clip(about, max(room, _NARROWEST_ABOUT))} · {notes}", width)


def _line_count(count: int, shown: int, call: FinishedCall, *, short: bool) -> str:
    if count <= shown or (not shown and count < 2):
        return ""
    if not shown:
        return f"{count:,} lines"
    which = "last" if call.has_failed or "command" in call.input else "first"
    return f"{which} {shown} of {count:,}:" if short else f"{count:,} lines, {which} {shown}:"


def _change_count(diff: Sequence[FileDiff]) -> str:
    return summary(diff) if len(diff) == 1 else f"{len(diff)} files {summary(diff)}"


def _changes(diff: Sequence[FileDiff], width: int) -> list[str]:
    lines: list[str] = []
    left = CHANGED_LINES
    for file in diff:
        if len(diff) > 1:
            lines.append(paint(one_line(file.path), "bold"))
        lines += diff_lines(file, width - len(_INDENT), limit=max(left, 0), context=1)
        left -= file.added + file.removed
    return lines


def _without_exit_code(text: str) -> tuple[str, str]:
    """Split off the note on how a command ended."""
    found = _EXIT_CODE.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def _rows(text: str, width: int, max_rows: int, *, tail: bool = False) -> list[str]:
    rows = [
        row for line in text.splitlines() for row in wrapped(_untabbed(line), width - len(_INDENT))
    ]
    return rows[-max_rows:] if tail else rows[:max_rows]


def _untabbed(line: str) -> str:
    return line.expandtabs(4)


def image_lines(data: dict[str, Any]) -> list[str]:
    """Return a placeholder for each image in the result of a tool event."""
    return [_image_line(block) for block in image_blocks(data)]


def _image_line(block: Any) -> str:
    source = field_of(block, "source") or block
    kind = one_line(str(field_of(source, "media_type") or "image"), 40)
    encoded = field_of(source, "data")
    size = describe.size(len(encoded) * 3 // 4) if isinstance(encoded, str) else ""
    return f"[image: {f'{kind} {size}'.strip()}]"


# To-do lists


def todo_items(data: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Return mark and text of each item a call sets; None if it sets no to-do list."""
    return _items(FinishedCall(data, 0).input)


def _items(given: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    todos = given.get("todos")
    if not isinstance(todos, list):
        return None
    items = [cast("Mapping[str, Any]", one) for one in todos if isinstance(one, Mapping)]
    return [
        (_TODO_MARKS.get(str(one.get("status")), "☐"), one_line(str(one.get("content") or ""), 100))
        for one in items
    ]


def checklist_lines(items: Sequence[tuple[str, str]], width: int, max_lines: int) -> list[str]:
    """Return a to-do list in at most `max_lines` lines: several items to a line, the current one in any
    case."""
    lines: list[str] = []
    for mark, text in items:
        item = clip(f"{mark} {text}", width)
        if lines and cells(lines[-1]) + 3 + cells(item) <= width:
            lines[-1] += f"   {item}"
        else:
            lines.append(item)
    if len(lines) <= max_lines:
        return lines
    current = next((n for n, line in enumerate(lines) if "▸" in line), 0)
    start = min(current, len(lines) - max_lines)
    return lines[start : start + max_lines]


def _checklist(call: FinishedCall, width: int) -> list[str]:
    items = None if call.has_failed else _items(call.input)
    return [] if items is None else checklist_lines(items, width - len(_INDENT), 3)
