"""Text with colour sequences, measured in terminal cells."""

from __future__ import annotations

import re
from functools import cache

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def plain(line: str) -> str:
    """Return `line` without sequences."""
    return _SEQUENCE.sub("", line) if "\x1b" in line else line


def cells(line: str) -> int:
    """Return the width of a line in terminal cells; sequences have none."""
    text = plain(line)
    return len(text) if text.isascii() else sum(map(cell_width, text))


@cache
def cell_width(character: str) -> int:
    """Return the cells of a character.

    An emoji of several characters counts as more than a terminal may use: a line is then too short,
    never too long.
    """
    if character.isascii():
        return 1
    if character == "\ufe0f":  # makes the character before it an emoji, with two cells
        return 1
    from wcwidth import wcwidth

    return max(wcwidth(character), 0)


def clip(line: str, width: int) -> str:
    """Return a line of at most `width` cells, with `…` for what is cut off."""
    if cells(line) <= width:
        return line
    kept: list[str] = []
    used, position = 0, 0
    while position < len(line):
        sequence = _SEQUENCE.match(line, position)
        if sequence:
            kept.append(sequence[0])
            position = sequence.end()
            continue
        used += cell_width(line[position])
        if used > width - 1:
            break
        kept.append(line[position])
        position += 1
    # Styles and links that end in the rest of the line end here as well.
    rest = "".join(_SEQUENCE.findall(line[position:]))
    return "".join(kept) + ("…" if width > 0 else "") + rest


def clip_middle(text: str, width: int) -> str:
    """Return plain text of at most `width` cells, with `…` for what is left out in the middle."""
    if cells(text) <= width:
        return text
    if width < 3:
        return clip(text, width)
    head, tail = "", ""
    room = width - 1
    for front, back in zip(text, reversed(text), strict=True):
        if cells(head) + cells(tail) + cells(back) > room:
            break
        tail = back + tail
        if cells(head) + cells(tail) + cells(front) > room:
            break
        head += front
    return f"{head}…{tail}"
