"""Text with colour sequences, measured in terminal cells."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from amplifier_support.text import lazy_pattern

_STYLES = {"bold": 1, "dim": 2, "italic": 3, "underline": 4, "reverse": 7, "strike": 9}
# Not blue, bright colours, white and black: each cannot be read on some background.
_COLOURS: dict[str, str | int] = {
    **{"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36},
    "accent": 36,
}
_theme: dict[str, str | int] | None = _COLOURS

_SEQUENCE = lazy_pattern(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

_STYLE = lazy_pattern(r"(\x1b\[[0-9;:]*m)")
_LINE_BREAK = lazy_pattern(r"[\n\r\v\f]")
_WORD = lazy_pattern(r"\S+")


def paint(text: str, style: str) -> str:
    """Return text in a style, such as `bold red`; without colours if there are none."""
    codes = _codes(style, has_colours())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def use_colours(colours: Mapping[str, str] | None) -> None:
    """Use these colours, as parameters of colour sequences by name, or else the usual ones; None for no colours."""
    global _theme
    _theme = None if colours is None else _COLOURS | dict(colours)
    _codes.cache_clear()


def has_colours() -> bool:
    """Return False if the theme or `NO_COLOR` leaves out colours."""
    return _theme is not None and not os.environ.get("NO_COLOR")


def has_colour(name: str) -> bool:
    """Return True if a style of the theme, such as `message`, has a colour here."""
    return has_colours() and name in (_theme or ())


@cache
def _codes(style: str, coloured: bool) -> str:
    known = _STYLES | (_theme or {}) if coloured else _STYLES
    return ";".join(str(known[name]) for name in style.split() if name in known)


def plain(line: str) -> str:
    """Return `line` without sequences."""
    return _SEQUENCE.sub("", line) if "\x1b" in line else line


def cells(line: str) -> int:
    """Return the width of a line in terminal cells; sequences have none."""
    if "\x1b" in line:
        line = _SEQUENCE.sub("", line)
    return len(line) if line.isascii() else sum(map(cell_width, line))


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
    """Return a line as lines of at most `width` cells, each with the styles it needs.

    They end between words where possible, and further ones are indented like the first.
    """
    if cells(line) <= width:
        return [line]
    text, styles = "", deque[tuple[int, str]]()  # each style with its position in the text
    for part in _STYLE.split(line):
        if part.startswith("\x1b["):
            styles.append((len(text), part))
        else:
            text += part
    indent = text[: len(text) - len(text.lstrip(" "))]
    indent = indent if len(indent) <= width // 2 else ""
    lines: list[str] = []
    style = ""
    for begin, end in _indented_rows(text, width, indent):
        pieces, at = [style, indent if lines else ""], begin
        while styles and styles[0][0] < end:
            position, sequence = styles.popleft()
            pieces += [text[at:position], sequence]
            at = max(at, position)
            style = "" if sequence in ("\x1b[0m", "\x1b[m") else style + sequence
        lines.append("".join([*pieces, text[at:end], "\x1b[0m" if style else ""]))
    return lines


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return text as lines of at most `width` cells, further lines indented; see `line_rows`."""
    if cells(text) <= width:
        return [text]
    text = _LINE_BREAK.sub(" ", text.expandtabs())
    width = max(width, len(indent) + 4) if indent else width
    first, *others = _indented_rows(text, width, indent)
    return [text[: first[1]], *(indent + text[begin:end] for begin, end in others)]


def _indented_rows(text: str, width: int, indent: str) -> list[tuple[int, int]]:
    """Return the rows of a line, see `line_rows`; those after the first leave room for an indentation."""
    first, *others = line_rows(text, width)
    if not others:
        return [first]
    start = others[0][0]
    rows = line_rows(text[start:], width - len(indent))
    return [first, *((start + begin, start + end) for begin, end in rows)]


def line_rows(line: str, width: int) -> list[tuple[int, int]]:
    """Return the rows of a line as positions in it, each of at most `width` cells.

    A word goes to the next row if it does not fit; one wider than a row is broken, and wide
    characters (Chinese, emoji) may be separated.
    """
    return ascii_rows(line, width) if line.isascii() else cell_rows(line, width)


def ascii_rows(line: str, width: int) -> list[tuple[int, int]]:
    """Return the same as `cell_rows` for a line of ASCII characters, faster."""
    rows: list[tuple[int, int]] = []
    begin, length = 0, len(line.rstrip())
    while length - begin > width:
        cut = line.rfind(" ", begin, begin + width + 1)
        kept = len(line[begin:cut].rstrip()) if cut > begin else 0
        if kept:
            rows.append((begin, begin + kept))
            begin = cut + 1
            while line[begin] == " ":
                begin += 1
        else:  # a word that is wider than a row
            rows.append((begin, begin + width))
            begin += width
    return [*rows, (begin, length)]


def cell_rows(line: str, width: int) -> list[tuple[int, int]]:
    """Return the rows of one line, see `line_rows`."""
    rows: list[tuple[int, int]] = []
    begin, end, used = 0, 0, 0  # of the current row; `used` counts its cells
    for start, stop in _words(line):
        word = cells(line[start:stop])
        gap = start - end
        if used and used + gap + word > width:
            rows.append((begin, end))
            begin, used, gap = start, 0, 0
        if used + gap + word <= width:
            used += gap + word
        else:  # too wide for a row, with the indentation before it
            for position in range(start - gap, stop):
                wide = cell_width(line[position])
                if used + wide > width and used:
                    rows.append((begin, position))
                    begin, used = position, 0
                used += wide
        end = stop
    return [*rows, (begin, end)]


def _words(line: str) -> Iterable[tuple[int, int]]:
    """Positions of the words; each wide character is a word of its own."""
    for match in _WORD.finditer(line):
        if match[0].isascii():
            yield match.span()
            continue
        start = match.start()
        for position in range(match.start(), match.end()):
            if cell_width(line[position]) > 1:
                if start < position:
                    yield start, position
                yield position, position + 1
                start = position + 1
        if start < match.end():
            yield start, match.end()


def message_lines(rows: Sequence[str], width: int) -> list[str]:
    """Return a message of the user as lines, shaded so that they are found when scrolling.

    Args:
        rows: The message, in rows of at most `width` - 2 cells.
        width: The cells of a line.
    """
    shaded = has_colour("message")
    # As wide as the text: a longer shade would be wrapped when the terminal becomes narrower.
    room = min(max(map(cells, rows), default=0) + 3, width) if shaded else 0
    lines: list[str] = []
    for row in rows:
        text = f"{row}{' ' * (room - 2 - cells(row))}"
        sign, gap = ("", "  ") if lines else (paint("›", "message bold accent"), " ")
        lines.append(sign + paint(f"{gap}{text}", "message"))
    return lines


def rich_lines(content: Any, width: int, *, styled: bool) -> list[str]:
    """Return the lines of a Rich renderable, with colour sequences if they are `styled`."""
    # Rich is loaded for the few commands that draw with it.
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=styled,
        no_color=not has_colours(),
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(content)
    return file.getvalue().splitlines()


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
