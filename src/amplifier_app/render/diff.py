"""Diffs as coloured lines with line numbers, for edits, approvals and `/diff`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from itertools import pairwise
from typing import Any, cast

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.render.ansi import cells, clip, fold, has_colour, paint, wrapped
from amplifier_app.render.call_lines import FinishedCall
from amplifier_app.render.inline import Span, code_lines
from amplifier_app.render.screen import image_blocks
from amplifier_app.runtime import describe
from amplifier_support.fields import read_field
from amplifier_support.named_tuple import NamedTuple

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_STYLES = {"-": "red", "+": "green"}
_SHADES = {"-": "removed", "+": "added"}
_MAX_HIGHLIGHTED = 2000
_MAX_COMPARED = 500
"""Lines with more characters are not compared word by word."""


class DiffLine(NamedTuple):
    """A line of a diff.

    Attributes:
        mark: `-` and `+` for changes, a space for context, `@` for the start of a hunk.
        number: Its line number, in the old text for `-`, else in the new one.
        text: The line without its line break.
    """

    mark: str
    number: int
    text: str = ""


class FileDiff(NamedTuple):
    """The changes of one file; `path` is empty if the diff does not name it."""

    path: str
    lines: list[DiffLine]

    @property
    def added(self) -> int:
        return sum(line.mark == "+" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.mark == "-" for line in self.lines)


def compare(old: str, new: str, path: str = "") -> FileDiff:
    """Return the changes from one text to another."""
    lines = unified_diff(old.splitlines(), new.splitlines(), lineterm="")
    files = parse("\n".join(lines))
    return FileDiff(path, files[0].lines if files else [])


def parse(diff: str) -> list[FileDiff]:
    """Read a unified diff of any number of files; text before the first hunk is ignored."""
    files: list[FileDiff] = []
    old = new = old_left = new_left = 0
    lines = diff.splitlines()
    for index, line in enumerate(lines):
        hunk = _HUNK.match(line)
        following = lines[index + 1] if index + 1 < len(lines) else ""
        mark = line[:1] or " "
        # Only the counts of a hunk tell its lines from headers: `--- x` can be a removed line.
        if old_left <= 0 and new_left <= 0:
            if line.startswith("--- ") and following.startswith("+++ "):
                named = line if following.startswith("+++ /dev/null") else following
                files.append(FileDiff(_path(named), []))
            elif hunk:
                old, new = int(hunk[1]), int(hunk[3])
                old_left, new_left = int(hunk[2] or 1), int(hunk[4] or 1)
                files = files or [FileDiff("", [])]
                files[-1].lines.append(DiffLine("@", new))
        elif mark in "-+ ":
            number = old if mark == "-" else new
            files[-1].lines.append(DiffLine(mark, number, line[1:]))
            if mark != "+":
                old, old_left = old + 1, old_left - 1
            if mark != "-":
                new, new_left = new + 1, new_left - 1
    return files


def _path(header: str) -> str:
    path = header[4:].partition("\t")[0]
    return path[2:] if path.startswith(("a/", "b/")) else path


def summary(files: Iterable[FileDiff]) -> str:
    """Count changed lines: `+3 −1`."""
    files = list(files)
    return f"+{sum(file.added for file in files)} −{sum(file.removed for file in files)}"


def diff_lines(
    file: FileDiff,
    width: int,
    *,
    limit: int | None = None,
    context: int = 3,
    fill: bool = False,
    hint: str = "",
) -> list[str]:
    """Return a file's changes as coloured lines of at most `width` cells; longer ones are folded.

    With a theme that has shades for them, changed lines are shaded and all have the colours of the language.

    Args:
        file: The changes.
        width: Cells per line.
        limit: Show at most so many changed lines and count the rest.
        context: Show at most so many unchanged lines around a change.
        fill: Shade changed lines over the whole width, which a frame around them keeps; otherwise as far as the
            longest reaches, because a terminal that becomes narrower wraps longer ones.
        hint: Text after the count of hidden lines.
    """
    selected, hidden = _select_lines(file.lines, limit, context)
    texts = (for_terminal(line.text).replace("\t", "    ") for line in selected)
    lines = [line._replace(text=text) for line, text in zip(selected, texts, strict=True)]
    digits = max((len(str(line.number)) for line in lines if line.mark != "@"), default=1)
    changed = _changed_parts(lines)
    code = _code(lines, file.path)
    room = max(width - digits - 3, 8)
    rows: list[tuple[str, str]] = []  # with the shade of each
    for index, line in enumerate(lines):
        if line.mark == "@":
            if index:
                rows.append((paint(" " * digits + " ⋮", "dim"), ""))
            continue
        style, part, shade = _line_styles(line.mark)
        first, *more = fold(_painted(code[index], style, part, changed.get(index, [])), room)
        sign = paint(f"{line.mark} ", f"{_STYLES.get(line.mark, '')} {shade}")
        rows.append((f"{paint(f'{line.number:>{digits}}', 'dim')} {sign}{first}", shade))
        rows += [(f"{' ' * digits} {paint('  ', shade)}{row}", shade) for row in more]
    if hidden:
        left = describe.count(hidden, "more changed line")
        rows.append((paint(f"{' ' * digits} … {left}{hint}", "dim"), ""))
    widest = width if fill else max((cells(row) for row, shade in rows if shade), default=0)
    return [
        row + paint(" " * (widest - cells(row)), shade) if shade else row.rstrip()
        for row, shade in rows
    ]


def _line_styles(mark: str) -> tuple[str, str, str]:
    """The style of a line, that of changed parts in it, and its shade, if the theme has one."""
    colour, shade = _STYLES.get(mark, ""), _SHADES.get(mark, "")
    if shade and has_colour(shade):
        return shade, f"{shade}-part", shade
    return colour, f"bold underline {colour}", ""


def _code(lines: Sequence[DiffLine], path: str) -> list[list[Span]]:
    """The lines as spans: in the colours of the language if changes have shades, which leave these free."""
    language = os.path.splitext(path)[1][1:]
    spans = [[Span(line.text)] for line in lines]
    if not language or not has_colour("added") or len(lines) > _MAX_HIGHLIGHTED:
        return spans
    # The old and the new text are read each as a whole: a comment can begin in a line above.
    for marks in ("- ", "+ "):
        numbers = [number for number, line in enumerate(lines) if line.mark in marks]
        texts = [lines[number].text for number in numbers]
        for number, highlighted in zip(numbers, code_lines(texts, language), strict=True):
            spans[number] = highlighted
    return spans


def files_lines(files: Iterable[FileDiff], width: int) -> list[str]:
    """Return the changes of several files, each below its path."""
    lines: list[str] = []
    for file in files:
        head = f"{paint(one_line(file.path, 400), 'bold')}  {summary([file])}"
        lines += [*([""] if lines else []), head, *diff_lines(file, width)]
    return lines


def _select_lines(
    lines: list[DiffLine], limit: int | None, context: int
) -> tuple[list[DiffLine], int]:
    """Return the lines to show, and how many changed lines are not among them."""
    changed = [index for index, line in enumerate(lines) if line.mark in "-+"]
    kept = changed if limit is None else changed[:limit]
    near = {n for index in kept for n in range(index - context, index + context + 1)}
    if kept and len(kept) < len(changed):
        near = {n for n in near if n <= kept[-1]}
    end = kept[-1] if kept else -1
    excerpt = [line for n, line in enumerate(lines) if n in near or (line.mark == "@" and n < end)]
    return excerpt, len(changed) - len(kept)


def _changed_parts(lines: list[DiffLine]) -> dict[int, list[tuple[int, int]]]:
    """Return, for lines that replace each other, the parts that differ, as character ranges."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for removed, added in _replacements(lines):
        for old, new in zip(removed, added, strict=False):
            before, after = lines[old].text, lines[new].text
            if max(len(before), len(after)) > _MAX_COMPARED:
                continue
            first, second = re.findall(r"\w+|\s+|.", before), re.findall(r"\w+|\s+|.", after)
            matcher = SequenceMatcher(None, first, second, autojunk=False)
            if matcher.ratio() < 0.5:  # another line rather than a changed one
                continue
            changes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
            parts[old] = [_range(first, i, j) for _, i, j, _, _ in changes if i < j]
            parts[new] = [_range(second, i, j) for _, _, _, i, j in changes if i < j]
    return parts


def _replacements(lines: list[DiffLine]) -> Iterator[tuple[range, range]]:
    """Runs of removed lines followed by runs of as many added lines or more."""
    start = 0
    while start < len(lines):
        middle = _end_of_run(lines, start, "-")
        end = _end_of_run(lines, middle, "+")
        if start < middle < end:
            yield range(start, middle), range(middle, end)
        start = max(end, start + 1)


def _end_of_run(lines: list[DiffLine], start: int, mark: str) -> int:
    while start < len(lines) and lines[start].mark == mark:
        start += 1
    return start


def _range(words: list[str], start: int, stop: int) -> tuple[int, int]:
    begin = sum(map(len, words[:start]))
    return begin, begin + sum(map(len, words[start:stop]))


def _painted(spans: list[Span], style: str, part: str, changed: list[tuple[int, int]]) -> str:
    """A line in a style, its changed parts in another one."""
    pieces: list[str] = []
    start = 0
    for span in spans:
        end = start + len(span.text)
        edges = {start, end, *(edge for edges in changed for edge in edges if start < edge < end)}
        for begin, stop in pairwise(sorted(edges)):
            is_changed = any(first <= begin and stop <= last for first, last in changed)
            text = span.text[begin - start : stop - start]
            pieces.append(paint(text, f"{span.style} {part if is_changed else style}"))
        start = end
    return "".join(pieces)


_MAX_LINES = 2000
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
        files = "" if len(diff) == 1 else f"{len(diff)} files "
        notes.insert(0, files + summary(diff))
        body = [] if was_seen else _changes(diff, width)
    else:
        end = _EXIT_CODE.search(call.output)
        text, exit_code = (call.output[: end.start()], end[1]) if end else (call.output, "")
        if exit_code and call.has_failed:
            notes.append(exit_code)
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if whole:
            rows, style = _rows("\n".join(lines), width, _MAX_LINES), "dim"
        elif call.has_failed:
            rows, style = _rows("\n".join(lines), width, FAILED_LINES, tail=True), ""
        elif describe.tool_name(call.data) in _CONTENT_TOOLS:
            rows, style = [], "dim"
        else:
            tail = "command" in call.input
            part = lines[-RESULT_LINES:] if tail else lines[:RESULT_LINES]
            rows, style = [clip(_untabbed(line), width - len(_INDENT)) for line in part], "dim"
        body = [paint(line, style) for line in rows]
        content = call.input.get("content")
        if describe.tool_name(call.data) == "write_file" and isinstance(content, str):
            notes.insert(0, describe.count(len(content.splitlines()), "line"))
        note = _line_count(len(lines), len(rows), call, short=width < _NARROW)
        is_folded = bool(note)
        notes += [note] if note else []
    items = (None if call.has_failed else todo_items(call.input)) or []
    below = [
        *checklist_lines(items, width - len(_INDENT), 3),
        *map(_image_line, image_blocks(call.data)),
    ]
    body += [paint(line, "dim") for line in below]
    mark = paint("✗", "red") if call.has_failed else paint("✓", "green")
    head = _head(mark, call, " · ".join(notes), width)
    path = describe.find_file(call.data)
    if link is not None and path and f" {path} " in head and os.path.exists(path):
        head = head.replace(path, link(path, path), 1)
    return Shown([head, *(f"{_INDENT}{line}".rstrip() for line in body)], is_folded)


def _head(mark: str, call: FinishedCall, notes: str, width: int) -> str:
    about = call.about()
    room = width - cells(notes) - 5
    return clip(f"{mark} {clip(about, max(room, _NARROWEST_ABOUT))} · {notes}", width)


def _line_count(count: int, height: int, call: FinishedCall, *, short: bool) -> str:
    if count <= height or (not height and count < 2):
        return ""
    if not height:
        return f"{count:,} lines"
    which = "last" if call.has_failed or "command" in call.input else "first"
    return f"{which} {height} of {count:,}:" if short else f"{count:,} lines, {which} {height}:"


def _changes(diff: Sequence[FileDiff], width: int) -> list[str]:
    lines: list[str] = []
    left = CHANGED_LINES
    for file in diff:
        if len(diff) > 1:
            lines.append(paint(one_line(file.path), "bold"))
        lines += diff_lines(file, width - len(_INDENT), limit=max(left, 0), context=1)
        left -= file.added + file.removed
    return lines


def _rows(text: str, width: int, max_rows: int, *, tail: bool = False) -> list[str]:
    lines = map(_untabbed, text.splitlines())
    rows = [row for line in lines for row in wrapped(line, width - len(_INDENT))]
    return rows[-max_rows:] if tail else rows[:max_rows]


def _untabbed(line: str) -> str:
    return line.expandtabs(4)


def _image_line(block: Any) -> str:
    """A placeholder for an image."""
    source = read_field(block, "source") or block
    kind = one_line(str(read_field(source, "media_type") or "image"), 40)
    encoded = read_field(source, "data")
    size = describe.size(len(encoded) * 3 // 4) if isinstance(encoded, str) else ""
    return f"[image: {f'{kind} {size}'.strip()}]"


# To-do lists


def todo_items(arguments: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return mark and text of each item a call sets; None if it sets no to-do list."""
    todos = arguments.get("todos")
    if not isinstance(todos, list):
        return None
    items = [cast("Mapping[str, Any]", todo) for todo in todos if isinstance(todo, Mapping)]
    marks = (_TODO_MARKS.get(str(item.get("status")), "☐") for item in items)
    texts = (one_line(str(item.get("content") or ""), 100) for item in items)
    return list(zip(marks, texts, strict=True))


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
