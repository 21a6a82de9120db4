"""Layouts of command output that fit any width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amplifier_app.base.sanitize import for_terminal
from amplifier_app.render.ansi import cells, wrapped

_LEAST_VALUE = 24
"""Cells a value needs next to its name; with fewer it goes below it."""
_LONG_NAME = 24
"""Cells of a name from which its value goes below it, unless the terminal is wide enough for all."""


class Rows:
    """Names with values, aligned; a long value wraps at words, and on a narrow terminal it is below its name.

    Args:
        pairs: The names and values.
        numbers: Align the values at the right.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], *, numbers: bool = False) -> None:
        self._pairs = [(for_terminal(name), for_terminal(value)) for name, value in pairs]
        self._numbers = numbers

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((cells(name) for name, _ in self._pairs), default=0)
        longest = max((cells(value) for _, value in self._pairs), default=0)
        if not self._numbers and widest + 2 + longest > options.max_width:
            short = (cells(name) for name, _ in self._pairs if cells(name) < _LONG_NAME)
            widest = max(short, default=widest)
        if not self._numbers and widest + 2 + _LEAST_VALUE > options.max_width:
            for name, value in self._pairs:
                yield Text(name)
                if value:
                    yield Padding(Text(value), (0, 0, 0, 4))
            return
        grid = self._grid(widest)
        for name, value in self._pairs:
            if cells(name) > widest:
                yield grid
                yield Text(name)
                name, grid = "", self._grid(widest)
            grid.add_row(Text(name), Text(value))
        yield grid

    def _grid(self, width: int) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=width)
        grid.add_column(justify="right" if self._numbers else "left", overflow="fold")
        return grid


class Lines:
    """Lines drawn for the width of the terminal.

    Args:
        draw: Returns the lines for a number of columns, possibly with colours.
    """

    def __init__(self, draw: Callable[[int], Iterable[str]]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from map(Text.from_ansi, self._draw(options.max_width))


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


def lines(*parts: RenderableType) -> Group:
    """Return the parts, one below the other."""
    return Group(*(Text(for_terminal(part)) if isinstance(part, str) else part for part in parts))
