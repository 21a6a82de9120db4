"""Text with colour sequences, measured in terminal cells."""

from __future__ import annotations

import os
import re
import textwrap
from functools import cache

_STYLES = {"bold": 1, "dim": 2, "italic": 3, "underline": 4, "reverse": 7, "strike": 9}
# Not blue, bright colours, white and black: each cannot be read on some background.
_COLOURS = {"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


def paint(text: str, style: str) -> str:
    """Return text in a style, such as `bold red`; without colours if `NO_COLOR` is set."""
    codes = _codes(style, bool(os.environ.get("NO_COLOR")))
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


@cache
def _codes(style: str, no_colour: bool) -> str:
    known = _STYLES if no_colour else _STYLES | _COLOURS
    return ";".join(str(known[name]) for name in style.split() if name in known)


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


def fold(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` cells, each with the styles it needs."""
    if cells(line) <= width:
        return [line]
    lines: list[str] = []
    current, used, style = "", 0, ""
    for part in re.split(r"(\x1b\[[0-9;:]*m)", line):
        if part.startswith("\x1b["):
            style = "" if part in ("\x1b[0m", "\x1b[m") else style + part
            current += part
            continue
        for character in part:
            wide = cell_width(character)
            if used + wide > width and used:
                lines.append(current + ("\x1b[0m" if style else ""))
                current, used = style, 0
            current += character
            used += wide
    return [*lines, current]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return text as lines of at most `width` cells, further lines indented.

    A word is broken only if it is wider than a line.
    """
    if cells(text) <= width:
        return [text]
    width = max(width, len(indent) + 4)
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
    if text.isascii():
        return lines or [""]
    # `textwrap` counts characters: wrap again what is too wide.
    fitted: list[str] = []
    for line in lines:
        fitted += [line] if cells(line) <= width else _folded(line, width, indent)
    return fitted or [""]


def _folded(line: str, width: int, indent: str) -> list[str]:
    lines: list[str] = []
    while cells(line) > width:
        end = len(clip(line, width + 1)) - 1  # without the `…`
        space = line.rfind(" ", len(indent) + 1, end + 1)
        cut = space if space > 0 else max(end, len(indent) + 1)
        lines.append(line[:cut].rstrip())
        line = indent + line[cut:].lstrip()
    return [*lines, line]


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
