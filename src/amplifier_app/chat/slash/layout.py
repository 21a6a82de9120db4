"""Layouts of command output that fit any width."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from amplifier_app.base.sanitize import for_terminal


def rows(pairs: Iterable[tuple[str, str]], *, numbers: bool = False) -> Table:
    """Return names with values; a long value wraps at words, below its beginning.

    Args:
        pairs: The names and values.
        numbers: Align the values at the right.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right" if numbers else "left", overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(for_terminal(name)), Text(for_terminal(value)))
    return grid


def lines(*parts: RenderableType) -> Group:
    """Return the parts, one below the other."""
    return Group(*(Text(for_terminal(part)) if isinstance(part, str) else part for part in parts))
