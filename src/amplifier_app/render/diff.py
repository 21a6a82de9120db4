"""Diffs as coloured lines with line numbers, for edits, approvals and `/diff`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, unified_diff
from typing import NamedTuple

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.render.ansi import fold, paint
from amplifier_app.runtime import describe

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_STYLES = {"-": "red", "+": "green"}
_LONGEST_COMPARED = 500
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
    found = parse("\n".join(lines))
    return FileDiff(path, found[0].lines if found else [])


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
    file: FileDiff, width: int, *, limit: int | None = None, context: int = 3
) -> list[str]:
    """Return a file's changes as coloured lines of at most `width` cells; longer ones are folded.

    Args:
        file: The changes.
        width: Cells per line.
        limit: Show at most so many changed lines and count the rest.
        context: Show at most so many unchanged lines around a change.
    """
    shown, hidden = _select_lines(file.lines, limit, context)
    digits = max((len(str(line.number)) for line in shown if line.mark != "@"), default=1)
    bold = _changed_parts(shown)
    lines: list[str] = []
    for index, line in enumerate(shown):
        if line.mark == "@":
            if index:
                lines.append(paint(" " * digits + " ⋮", "dim"))
            continue
        number = paint(f"{line.number:>{digits}}", "dim")
        style = _STYLES.get(line.mark, "")
        text = _painted(line.text, style, bold.get(index, []))
        first, *rest = fold(text, max(width - digits - 3, 8))
        lines.append(f"{number} {paint(line.mark, style)} {first}".rstrip())
        lines += [f"{' ' * digits}   {more}" for more in rest]
    if hidden:
        left = describe.count(hidden, "more changed line")
        lines.append(paint(f"{' ' * digits} … {left}", "dim"))
    return lines


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
    shown = [line for n, line in enumerate(lines) if n in near or (line.mark == "@" and n < end)]
    return shown, len(changed) - len(kept)


def _changed_parts(lines: list[DiffLine]) -> dict[int, list[tuple[int, int]]]:
    """Return, for lines that replace each other, the parts that differ, as character ranges."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for removed, added in _replacements(lines):
        for old, new in zip(removed, added, strict=False):
            before, after = lines[old].text, lines[new].text
            if max(len(before), len(after)) > _LONGEST_COMPARED:
                continue
            first, second = re.findall(r"\w+|\s+|.", before), re.findall(r"\w+|\s+|.", after)
            matcher = SequenceMatcher(None, first, second, autojunk=False)
            if matcher.ratio() < 0.5:  # another line rather than a changed one
                continue
            changes = [one for one in matcher.get_opcodes() if one[0] != "equal"]
            parts[old] = [_range(first, one[1], one[2]) for one in changes if one[1] < one[2]]
            parts[new] = [_range(second, one[3], one[4]) for one in changes if one[3] < one[4]]
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


def _painted(text: str, style: str, bold: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    position = 0
    for start, stop in bold:
        pieces.append(paint(_clean(text[position:start]), style))
        pieces.append(paint(_clean(text[start:stop]), f"bold underline {style}"))
        position = stop
    return "".join([*pieces, paint(_clean(text[position:]), style)])


def _clean(text: str) -> str:
    return for_terminal(text).replace("\t", "    ")
