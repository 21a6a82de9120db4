"""Replacing exact text, and showing what changed."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import NamedTuple

from amplifier_modules.tool_filesystem.errors import (
    NothingToChange,
    TextNotFound,
    TextNotUnique,
)
from amplifier_modules.tool_filesystem.text import line_end, with_line_end

CONTEXT = 3
"""Unchanged lines around a change in a diff."""

_SHOWN_PLACES = 10


class Change(NamedTuple):
    """`text[start:end]` becomes `new`."""

    start: int
    end: int
    new: str


def changes(text: str, old: str, new: str, *, everywhere: bool) -> list[Change]:
    """Where `old` stands in `text` and what it becomes.

    A line end in `old` matches LF and CR LF; a replacement gets the line ends of what it replaces.

    Raises:
        TextNotFound: It is not there; the message says if only white space differs.
        TextNotUnique: It is there more than once and not all of them were asked for.
        NothingToChange: `old` and `new` are the same.
    """
    if with_line_end(old, "\n") == with_line_end(new, "\n"):
        raise NothingToChange("old_string and new_string are the same")
    spans = list(_matches(text, old, overlapping=not everywhere))
    if not spans:
        raise TextNotFound(_missing(text, old))
    if len(spans) > 1 and not everywhere:
        places = [str(text.count("\n", 0, start) + 1) for start, _ in spans[:_SHOWN_PLACES]]
        more = ", …" if len(spans) > _SHOWN_PLACES else ""
        raise TextNotUnique(
            f"old_string is there {len(spans)} times, at lines {', '.join(places)}{more}; "
            "give more of the text around it, or set replace_all"
        )
    usual = line_end(text)
    return [Change(start, end, _fitted(text[start:end], new, usual)) for start, end in spans]


def apply(text: str, made: Sequence[Change]) -> str:
    """`text` with the changes, which are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for change in made:
        parts += (text[at : change.start], change.new)
        at = change.end
    return "".join([*parts, text[at:]])


def _matches(text: str, old: str, *, overlapping: bool) -> Iterator[tuple[int, int]]:
    plain = with_line_end(old, "\n")
    if "\r" in text and "\n" in plain:
        pattern = "\r?\n".join(map(re.escape, plain.split("\n")))
        if not overlapping:
            yield from (match.span() for match in re.finditer(pattern, text))
            return
        for match in re.finditer(f"(?=({pattern}))", text):
            yield match.span(1)
        return
    at = text.find(plain)
    while at >= 0:
        yield at, at + len(plain)
        at = text.find(plain, at + (1 if overlapping else len(plain)))


def _fitted(replaced: str, new: str, usual: str) -> str:
    return with_line_end(new, line_end(replaced) if "\n" in replaced else usual)


def _missing(text: str, old: str) -> str:
    wanted = [line.strip() for line in old.strip().splitlines()]
    lines = [line.strip() for line in text.split("\n")]
    for at in range(len(lines) - len(wanted) + 1):
        if wanted and lines[at] == wanted[0] and lines[at : at + len(wanted)] == wanted:
            return (
                f"old_string is not in the file; the text at line {at + 1} differs from it only "
                "in white space: read the file and copy it exactly"
            )
    return "old_string is not in the file; read the file again and copy the text exactly"


# -- the diff --------------------------------------------------------------------------------------


def unified_diff(path: str, text: str, made: Sequence[Change]) -> str:
    """The changes as a unified diff, in time that grows with the changes and not with the file."""
    lines = _lines(text)
    starts = [0, *accumulate(map(len, lines))]
    output = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    shift = 0
    for first, last, group in _windows(made, starts, len(lines)):
        before = lines[first:last]
        within = [Change(c.start - starts[first], c.end - starts[first], c.new) for c in group]
        after = _lines(apply("".join(before), within))
        output += _hunks(before, after, first, first + shift)
        shift += len(after) - len(before)
    return "".join(output)


def _lines(text: str) -> list[str]:
    # Not splitlines, which also splits at characters that do not end a line in a file.
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]]
    return [*kept, lines[-1]] if lines[-1] else kept


def _windows(
    made: Sequence[Change], starts: Sequence[int], count: int
) -> Iterator[tuple[int, int, list[Change]]]:
    """(first line, line after the last, changes) of stretches whose contexts do not touch."""
    first, last, group = 0, 0, list[Change]()
    for change in made:
        begin = max(0, bisect_right(starts, change.start) - 1 - CONTEXT)
        end = min(count, bisect_right(starts, change.end) + CONTEXT)
        if group and begin > last:
            yield first, last, group
            group = []
        first = begin if not group else first
        last = end
        group.append(change)
    if group:
        yield first, last, group


def _hunks(before: list[str], after: list[str], old_at: int, new_at: int) -> Iterator[str]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        old = _range(old_at + i1, i2 - i1)
        yield f"@@ -{old} +{_range(new_at + j1, j2 - j1)} @@\n"
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                yield from (_marked(" ", line) for line in before[a1:a2])
                continue
            yield from (_marked("-", line) for line in before[a1:a2])
            yield from (_marked("+", line) for line in after[b1:b2])


def _range(start: int, length: int) -> str:
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _marked(mark: str, line: str) -> str:
    if line.endswith("\n"):
        return mark + line.removesuffix("\n").removesuffix("\r") + "\n"
    return f"{mark}{line}\n\\ No newline at end of file\n"
