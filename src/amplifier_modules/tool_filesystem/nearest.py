"""Find the text nearest to text that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_MOST_LINES = 50_000
"""Lines searched: a message is not worth more time."""

_MOST_COMPARED = 500
_LONGEST_COMPARED = 300
_LEAST_ALIKE = 0.6
_OFTEN = 20
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2_000


class Near(NamedTuple):
    """Lines `at` to `end` (from 0, without `end`), and how they differ from the wanted text."""

    at: int
    end: int
    difference: str


def missing(text: str, old: str) -> str:
    """The message for missing `old`: the nearest text, with its lines."""
    lines = text.split("\n")
    near = _near([line.strip() for line in lines[:_MOST_LINES]], old)
    if near is None:
        return (
            "old_string is not in the file, and no similar text was found; "
            "read the file again and copy the text exactly"
        )
    shown, cut = _shown(lines[near.at : near.end])
    where = f"line {near.at + 1}" if near.end == near.at + 1 else f"lines {near.at + 1}-{near.end}"
    more = " (cut here; read the file from there)" if cut else ""
    return (
        f"old_string is not in the file; the text at {where} {near.difference}. "
        f"Copy it exactly:\n{shown}{more}"
    )


def _near(lines: Sequence[str], old: str) -> Near | None:
    """The nearest place in `lines`, which have no surrounding white space."""
    wanted = [line.strip() for line in old.strip().splitlines()]
    if not any(wanted):
        return None
    for at in _places(lines, wanted):
        if lines[at : at + len(wanted)] == wanted:
            return Near(at, at + len(wanted), "differs only in white space")
    return _most_lines_alike(lines, wanted) or _most_alike_line(lines, wanted)


def _places(lines: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    for at in range(len(lines) - len(wanted) + 1):
        if lines[at] == wanted[0]:
            yield at


def _most_lines_alike(lines: Sequence[str], wanted: Sequence[str]) -> Near | None:
    """The place where most of the wanted lines are at the same distance from each other."""
    if len(wanted) < 2:
        return None
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(wanted):
        offsets.setdefault(line, []).append(offset)
    votes: Counter[int] = Counter()
    for number, line in enumerate(lines):
        of = offsets.get(line)
        # Braces and blank lines are everywhere and say nothing.
        if of is not None and len(line) > 2 and len(of) <= _OFTEN:
            for offset in of:
                votes[number - offset] += len(line)
    if not votes:
        return None
    first = max(votes, key=lambda at: (votes[at], -at))
    at, end = max(0, first), min(len(lines), first + len(wanted))
    same = sum(lines[n] == wanted[n - first] for n in range(at, end))
    return Near(at, end, f"is the nearest, with {same} of {len(wanted)} lines the same")


def _most_alike_line(lines: Sequence[str], wanted: Sequence[str]) -> Near | None:
    """The line most like the longest wanted line."""
    offset, key = max(enumerate(wanted), key=lambda item: len(item[1]))
    key = key[:_LONGEST_COMPARED]
    # The sequence that takes longest to prepare is the second.
    matcher = SequenceMatcher(None, "", key, autojunk=False)
    best, found, compared = _LEAST_ALIKE, None, 0
    for number, line in enumerate(lines):
        if not len(key) / 3 <= len(line) <= len(key) * 3 + 20:
            continue
        matcher.set_seq1(line[:_LONGEST_COMPARED])
        if matcher.real_quick_ratio() <= best or matcher.quick_ratio() <= best:
            continue
        compared += 1
        ratio = matcher.ratio()
        if ratio > best:
            best, found = ratio, number
        if compared >= _MOST_COMPARED:
            break
    if found is None:
        return None
    at = max(0, found - offset)
    end = min(len(lines), at + len(wanted))
    return Near(at, end, "is the nearest")


def _shown(lines: Sequence[str]) -> tuple[str, bool]:
    text = "\n".join(line.removesuffix("\r") for line in lines[:_SHOWN_LINES])
    cut = len(lines) > _SHOWN_LINES or len(text) > _SHOWN_CHARACTERS
    return text[:_SHOWN_CHARACTERS], cut
