"""Changes to a text as a unified diff."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate

from amplifier_modules.tool_filesystem.editing import Change, apply

CONTEXT = 3
"""Unchanged lines around a change in a diff."""


def unified_diff(path: str, text: str, changes: Sequence[Change]) -> str:
    """The changes as a unified diff; takes time proportional to the changes, not the file."""
    lines = _lines(text)
    starts = [0, *accumulate(map(len, lines))]
    output = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    shift = 0
    for first, last, group in _windows(changes, starts, len(lines)):
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
    changes: Sequence[Change], starts: Sequence[int], count: int
) -> Iterator[tuple[int, int, list[Change]]]:
    """(first line, line after the last, changes) of ranges whose context lines do not touch."""
    first, last, group = 0, 0, list[Change]()
    for change in changes:
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
