"""Shows what is typed while a turn runs."""

from __future__ import annotations

from rich.text import Text

from amplifier_app.base.sanitize import in_line, one_line
from amplifier_app.runtime.observer import Typed

MOST_WAITING = 3


def typed_lines(typed: Typed) -> list[Text]:
    """What waits, and the line with its cursor; nothing where nothing was typed."""
    more = len(typed.waiting) - MOST_WAITING
    lines = [_dim(f"  {state}: {one_line(text)}") for state, text in typed.waiting[:MOST_WAITING]]
    if more > 0:
        lines.append(_dim(f"  … {more} more"))
    if typed.line:
        before, after = in_line(typed.line[: typed.cursor]), in_line(typed.line[typed.cursor :])
        at, after = after[:1] or " ", after[1:]
        lines.append(Text.assemble(("› ", "bold"), before, (at, "reverse"), after))
    return lines


def _dim(text: str) -> Text:
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")
