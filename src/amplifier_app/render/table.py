"""The `--output` option and tables, shared by commands that list things.

On a terminal a table fits its width: columns are dropped, cells cut or wrapped. In a pipe every value is
whole, on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.render.ansi import cells, clip, clip_middle, wrapped
from amplifier_support.named_tuple import NamedTuple

_GAP = "  "
_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


Format = Literal["text", "json"]
"""Output format of a command."""

OutputOption = Annotated[Format, typer.Option("--output", help="Output format: text or json.")]


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        head: Its heading.
        fit: What happens to a value that is too wide: nothing, cut at the end, cut in the middle
            (ids, paths), or wrapped to several lines.
        drop: Whether the column may be dropped: the one with the highest number first; 0 for never.
        right: Align to the right.
        least: Width in cells below which it is not made narrower while a column can be dropped.
        optional: Leave it out if it is empty in every row.
    """

    head: str
    fit: Literal["whole", "end", "middle", "wrap"] = "whole"
    drop: int = 0
    right: bool = False
    least: int = 12
    optional: bool = False


def print_listing(
    output: Format,
    data: Any,
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[str]],
    empty: str = "",
) -> None:
    """Print data as JSON, or as a table; without rows, `empty` on stderr."""
    if output == "json":
        print(json_text(data))
        return
    if not rows and empty:
        to_stderr(empty)
    print_table(columns, rows)


def print_table(columns: Sequence[Column | str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: as wide as the terminal, or whole in a pipe."""
    width = terminal_width(1)
    for line in table(columns, rows, width):
        print(line)


def table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return rows under a heading as aligned lines; empty without rows.

    Args:
        columns: The columns, or just their headings.
        rows: One value per column.
        width: Cells of a terminal, where the heading is bold; None for plain lines with whole values.
    """
    if not rows:
        return []
    layout = [Column(entry) if isinstance(entry, str) else entry for entry in columns]
    shown = [n for n, column in enumerate(layout) if not column.optional or any(r[n] for r in rows)]
    layout = [layout[n] for n in shown]
    values = [[one_line(row[n], 10_000) for n in shown] for row in rows]
    widths = [
        max(cells(column.head), max(map(cells, texts)))
        for column, texts in zip(layout, zip(*values, strict=True), strict=True)
    ]
    if width is not None:
        column_widths = _column_widths(layout, widths, width)
        layout = [layout[n] for n in column_widths]
        values = [[row[n] for n in column_widths] for row in values]
        widths = list(column_widths.values())
    lines = _row_lines(layout, widths, [column.head for column in layout])
    if width is not None:
        lines = [f"{_BOLD}{line}{_RESET}" for line in lines]
    for row in values:
        lines += _row_lines(layout, widths, row)
    return lines


def _column_widths(layout: list[Column], natural: list[int], width: int) -> dict[int, int]:
    """Return the columns that stay, by number, with their widths in cells."""
    widths = dict(enumerate(natural))

    def excess() -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    def spare(n: int) -> int:
        least = max(layout[n].least, cells(layout[n].head))
        return 0 if layout[n].fit == "whole" else max(0, widths[n] - least)

    while excess() > sum(map(spare, widths)):
        droppable = [n for n in widths if layout[n].drop and len(widths) > 1]
        if not droppable:
            break
        del widths[max(droppable, key=lambda n: layout[n].drop)]
    # Take the space from the widest column first; below its least width only if nothing else helps.
    while excess() > 0:
        flexible = [n for n in widths if layout[n].fit != "whole" and widths[n] > 4]
        if not flexible:
            break
        widths[max(flexible, key=lambda n: (spare(n) > 0, widths[n]))] -= 1
    return widths


def _row_lines(layout: list[Column], widths: list[int], row: list[str]) -> list[str]:
    parts = [
        _cell_lines(column, value, width)
        for column, value, width in zip(layout, row, widths, strict=True)
    ]
    return [
        _GAP.join(map(_aligned, texts, widths, layout)).rstrip()
        for texts in zip_longest(*parts, fillvalue="")
    ]


def _cell_lines(column: Column, value: str, width: int) -> list[str]:
    if cells(value) <= width or column.fit == "whole":
        return [value]
    if column.fit == "wrap":
        return wrapped(value, width)
    return [clip_middle(value, width) if column.fit == "middle" else clip(value, width)]


def _aligned(text: str, width: int, column: Column) -> str:
    padding = " " * (width - cells(text))
    return padding + text if column.right else text + padding
