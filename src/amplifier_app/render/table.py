"""The `--output` option and aligned columns, shared by commands that list things."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from amplifier_app.base.sanitize import one_line


class Format(str, Enum):  # noqa: UP042 - Typer shows the members' values
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Format, typer.Option("--output", help="Output format: text or json.")]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows under a header as aligned lines; empty without rows."""
    if not rows:
        return []
    cells = [tuple(head), *(tuple(one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
