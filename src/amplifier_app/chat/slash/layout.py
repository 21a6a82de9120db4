"""Layouts of command output that fit any width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.ansi import Lines, cells, paint, reply_lines, wrapped, wrapped_text

_LEAST_VALUE = 24
"""Cells a value needs next to its name; with fewer it goes below it."""
_LONG_NAME = 24
"""Cells of a name from which its value goes below it, unless the terminal is wide enough for all."""


class Rows(Lines):
    """Names with values, aligned; a long value wraps at words, and on a narrow terminal it is below its name.

    Args:
        pairs: The names and values.
        numbers: Align the values at the right.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], *, numbers: bool = False) -> None:
        super().__init__(self._lines)
        self._pairs = [(for_terminal(name), for_terminal(value)) for name, value in pairs]
        self._numbers = numbers

    def _lines(self, width: int, styled: bool) -> Iterator[str]:
        widest = max((cells(name) for name, _ in self._pairs), default=0)
        longest = max((cells(value) for _, value in self._pairs), default=0)
        if not self._numbers and widest + 2 + longest > width:
            short = (cells(name) for name, _ in self._pairs if cells(name) < _LONG_NAME)
            widest = max(short, default=widest)
        is_narrow = not self._numbers and widest + 2 + _LEAST_VALUE > width
        column = 4 if is_narrow else widest + 2
        for name, value in self._pairs:
            if is_narrow or cells(name) > widest:
                yield from wrapped(name, width)
                name = ""
                if not value:
                    continue
            for row in wrapped_text(value, max(width - column, 8)):
                space = column - cells(name) + (longest - cells(row) if self._numbers else 0)
                yield f"{name}{' ' * space}{row}".rstrip()
                name = ""


def styled(text: str, style: str) -> Lines:
    """Return a text in a style, see `amplifier_app.render.ansi.paint`."""
    safe = for_terminal(text)
    return Lines(lambda width, _: (paint(row, style) for row in wrapped_text(safe, width)))


def wrapped_source(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text such as YAML, which wrap below their own indentation."""
    for line in for_terminal(text).splitlines():
        yield from wrapped(line, width, " " * (len(line) - len(line.lstrip()) + 4))


def marked_rows(pairs: Iterable[tuple[str, str]], current: str | None) -> Rows:
    """Return names with values, the current one marked."""
    return Rows((f"{mark(name, current)} {name}", value) for name, value in pairs)


def mark(name: str, current: str | None) -> str:
    """Return the mark before a name: a star for the current one."""
    return "*" if name == current else " "


def lines(*parts: str | Lines) -> Lines:
    """Return the parts, one below the other."""

    def draw(width: int, styled: bool) -> Iterator[str]:
        for part in parts:
            yield from reply_lines(part, width, styled=styled)

    return Lines(draw)
