"""Replace exact text: find it and compute the new text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from amplifier_modules.tool_filesystem.errors import (
    FileProblem,
    NothingToChange,
    TextNotFound,
    TextNotUnique,
)
from amplifier_modules.tool_filesystem.nearest import missing
from amplifier_modules.tool_filesystem.text import line_end, with_line_end

_SHOWN_PLACES = 10


class Edit(NamedTuple):
    """Text to replace, its replacement, and whether to replace every occurrence."""

    old: str
    new: str
    everywhere: bool = False


class Change(NamedTuple):
    """`text[start:end]` becomes `new`."""

    start: int
    end: int
    new: str


class Edited(NamedTuple):
    """A text after its edits, the changes in order, and the number of places changed."""

    text: str
    changes: list[Change]
    places: int


def apply_edits(text: str, edits: Sequence[Edit]) -> Edited:
    """Apply all of `edits` to `text`, each to the result of the one before.

    Raises:
        FileProblem: An edit cannot be made; if there are several, the message says which.
    """
    combined: list[Change] = []
    places = 0
    outcome = text
    for number, edit in enumerate(edits, 1):
        try:
            step = changes(outcome, edit)
        except FileProblem as error:
            if len(edits) == 1:
                raise
            which = f"edit {number} of {len(edits)}"
            raise type(error)(f"{which}: {error}\nNo edit was made.") from None
        combined = combine_changes(combined, step, outcome)
        outcome = apply(outcome, step)
        places += len(step)
    if outcome == text:
        raise NothingToChange("the edits cancel each other out: nothing would change")
    return Edited(outcome, combined, places)


def changes(text: str, edit: Edit) -> list[Change]:
    """Where the edit's old text is in `text` and what replaces it.

    A line end in it matches LF and CR LF; a replacement gets the line ends of what it replaces.

    Raises:
        TextNotFound: It is missing; the message shows the nearest text.
        TextNotUnique: It occurs more than once and `replace_all` is not set.
        NothingToChange: The old and the new text are the same.
    """
    old, new, everywhere = edit
    if not old:
        raise TextNotFound("old_string is empty; use write_file to replace the whole file")
    if with_line_end(old, "\n") == with_line_end(new, "\n"):
        raise NothingToChange("old_string and new_string are the same")
    spans = list(_matches(text, old, overlapping=not everywhere))
    if not spans:
        raise TextNotFound(missing(text, old))
    if len(spans) > 1 and not everywhere:
        places = [str(text.count("\n", 0, start) + 1) for start, _ in spans[:_SHOWN_PLACES]]
        more = ", …" if len(spans) > _SHOWN_PLACES else ""
        raise TextNotUnique(
            f"old_string occurs {len(spans)} times, at lines {', '.join(places)}{more}; "
            "include more of the surrounding text, or set replace_all"
        )
    usual = line_end(text)
    return [Change(start, end, _fitted(text[start:end], new, usual)) for start, end in spans]


def apply(text: str, changes: Sequence[Change]) -> str:
    """`text` with the changes, which are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for change in changes:
        parts += (text[at : change.start], change.new)
        at = change.end
    return "".join([*parts, text[at:]])


def combine_changes(
    first: Sequence[Change], second: Sequence[Change], between: str
) -> list[Change]:
    """The changes equal to `first` followed by `second` on its result, `between`.

    All are in order; changes of the two that touch become one.
    """
    if not first:
        return list(second)
    result: list[Change] = []
    later = deque(second)
    shift = 0  # how far text after the changes of `first` so far has moved
    earlier = deque(_moved(first))
    while earlier or later:
        start = min(waiting[0].start for waiting in (earlier, later) if waiting)
        end, moved = start, shift
        inner: list[Change] = []
        while True:
            if earlier and earlier[0].start <= end:
                change = earlier.popleft()
                moved += change.grown
                end = max(end, change.end)
            elif later and later[0].start <= end:
                inner.append(later.popleft())
                end = max(end, inner[-1].end)
            else:
                break
        within = [Change(c.start - start, c.end - start, c.new) for c in inner]
        result.append(Change(start - shift, end - moved, apply(between[start:end], within)))
        shift = moved
    return result


class _Moved(NamedTuple):
    """Where the new text of a change is, and how much longer it is than the old text."""

    start: int
    end: int
    grown: int


def _moved(changes: Sequence[Change]) -> list[_Moved]:
    moved: list[_Moved] = []
    shift = 0
    for change in changes:
        start = change.start + shift
        grown = len(change.new) - (change.end - change.start)
        moved.append(_Moved(start, start + len(change.new), grown))
        shift += grown
    return moved


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
