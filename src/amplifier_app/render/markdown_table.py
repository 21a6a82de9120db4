"""A Markdown table as rows of a terminal: all text is kept, whatever the width."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import table as standard_table

from amplifier_app.render.ansi import cells, paint
from amplifier_app.render.inline import Span, StyledText, rows_of, wrap

ROWS_MEASURED = 11
"""Rows, with the head, that decide the widths of the columns. Later rows are wrapped to them, so that
a long table can be printed while it is written."""

HEAD_WITHIN = 32
"""Characters of a line among which the head of a table has its first `|`. Other lines are text at once,
so that they can be printed before the next line is known."""

_GAP = " │ "
_NARROWEST = 6
"""Cells of a column below which the table is printed as one line per value."""


def may_be_head(line: str) -> bool:
    """Whether a line can be the head of a table."""
    return "|" in line.lstrip()[:HEAD_WITHIN]


def read_table(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """The parser's rule for tables, for those whose head has an early `|`.

    The line below the head must be complete, too, unless no more text comes.
    """
    begin = state.bMarks[startLine] + state.tShift[startLine]
    line = state.src[begin : state.eMarks[startLine]]
    is_read = state.env.get("complete") or state.src.find("\n", state.eMarks[startLine] + 1) >= 0
    return may_be_head(line) and is_read and standard_table(state, startLine, endLine, silent)


def table_rows(
    table: Sequence[Sequence[StyledText]], aligned: Sequence[str], width: int
) -> tuple[list[str], list[int]]:
    """Return the lines of a table, and the line each of its rows begins at.

    Args:
        table: The cells; the first row is the head.
        aligned: For each column, `left`, `right` or `center`.
        width: Cells of a line.
    """
    natural = [
        max(max(cells(row[n].text), 1) for row in table[:ROWS_MEASURED])
        for n in range(len(aligned))
    ]
    room = width - len(_GAP) * (len(aligned) - 1)
    widths = _fit_widths(natural, room)
    if widths is not None and len(table) > ROWS_MEASURED:
        widths = _add_free_space(widths, room)
    lines: list[str] = []
    starts: list[int] = []
    if widths is None:
        for index, row in enumerate(table[1:]):
            starts.append(len(lines) if index else 0)
            lines += _record(table[0], row, width, first=not index)
        return lines, [0, *starts]
    for index, row in enumerate(table):
        starts.append(len(lines))
        lines += _row(row, aligned, widths)
        if index == 0:
            lines.append(paint("─┼─".join("─" * one for one in widths), "dim"))
    return lines, starts


def _fit_widths(natural: list[int], room: int) -> list[int] | None:
    """Return widths that fit; None if the columns would be too narrow."""
    widths = list(natural)
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda n: widths[n])
        if widths[widest] <= _NARROWEST:
            return None
        widths[widest] -= 1
    return widths


def _add_free_space(widths: list[int], room: int) -> list[int]:
    """Give each column some of the free space, for longer values further down."""
    spare = max(0, room - sum(widths)) // len(widths)
    return [width + min(spare, width // 4 + 2) for width in widths]


def _row(row: Sequence[StyledText], aligned: Sequence[str], widths: Sequence[int]) -> list[str]:
    columns = [_lines(cell.spans, width) for cell, width in zip(row, widths, strict=True)]
    lines: list[str] = []
    for n in range(max(map(len, columns))):
        parts: list[str] = []
        for column, width, side in zip(columns, widths, aligned, strict=True):
            text = column[n] if n < len(column) else ""
            room = width - cells(text)
            before = {"right": room, "center": room // 2}.get(side, 0)
            parts.append(" " * before + text + " " * (room - before))
        lines.append(paint(_GAP, "dim").join(parts).rstrip())
    return lines


def _record(
    head: Sequence[StyledText], row: Sequence[StyledText], width: int, *, first: bool
) -> list[str]:
    """Return a row as lines `heading: value`, with an empty line before it unless it is the first."""
    lines = [] if first else [""]
    for name, value in zip(head, row, strict=True):
        label = [*name.spans, Span(": ")] if name.text else []
        lines += _lines([*label, *value.spans], width)
    return lines


def _lines(spans: Sequence[Span], width: int) -> list[str]:
    text = "".join(span.text for span in spans)
    return rows_of(spans, wrap(text, width))
