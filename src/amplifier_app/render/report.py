"""The report of `amplifier module validate` for a person."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from amplifier_app.base.sanitize import for_terminal, one_line

if TYPE_CHECKING:
    from amplifier_app.base.checks import Check, Report

Style = Literal["good", "bad", "warn", "dim", "bold", ""]

_COLOURS = {"good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim", "bold": "bold"}
_MARKS: dict[str, tuple[str, Style]] = {
    "good": ("ok  ", "good"),
    "bad": ("FAIL", "bad"),
    "warn": ("warn", "warn"),
    "note": ("note", "dim"),
}
_STATES = {"error": "bad", "warning": "warn", "info": "note"}

_MARK_WIDTH = 6
_ENOUGH_ROOM = 40
"""Columns for a message beside the names of checks; with less it goes below the name."""


class Span(NamedTuple):
    """A piece of a line with its style."""

    text: str
    style: Style = ""


Line = list[Span]


def print_report(report: Report) -> None:
    """Write the report to stdout: with colours on a terminal, as plain text in a pipe."""
    print_lines(lambda width: report_lines(report, width=width))


def print_lines(lines_of: Callable[[int], list[Line]]) -> None:
    """Write lines to stdout: with colours on a terminal, as plain text in a pipe.

    Args:
        lines_of: Makes the lines for so many columns.
    """
    if not sys.stdout.isatty():
        # Not wrapped: whoever reads it searches for lines.
        for line in lines_of(sys.maxsize):
            print("".join(span.text for span in line).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    # Texts of a module are `Text`, never markup: a bracket in them is a bracket.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in lines_of(min(console.width, 120)):
        text = Text()
        for span in line:
            text.append(span.text, style=_COLOURS.get(span.style, ""))
        console.print(text)


def report_lines(report: Report, *, width: int) -> list[Line]:
    """The report as styled lines of at most `width` columns, control characters removed.

    Words that are longer, such as paths, stay whole, so that they can be copied.
    """
    kind = report.kind or "module"
    lines: list[Line] = [[Span(f"{kind}: {one_line(report.subject, 1000)}", "bold")], []]
    lines += lines_of_checks(report.checks, width)
    if report.output and not report.passed:
        lines += [[], [Span("The end of what it wrote:", "dim")]]
        for text in for_terminal(report.output).splitlines():
            lines.append([Span(f"  {text}", "dim")])
    return [*lines, [], _verdict(report)]


def lines_of_checks(checks: Sequence[Check], width: int) -> list[Line]:
    """What was looked at: how each thing is, what was found, and how to mend it."""
    name_width = max((len(one_line(check.name)) for check in checks), default=0)
    beside = width - (_MARK_WIDTH + name_width + 2) >= _ENOUGH_ROOM
    lines: list[Line] = []
    for check in checks:
        lines += _check_lines(check, name_width if beside else None, width)
    return lines


def _check_lines(check: Check, name_width: int | None, width: int) -> list[Line]:
    """A check with its message beside its name, or below it where there is no room."""
    mark, style = _MARKS["good" if check.passed else _STATES[check.severity]]
    name = one_line(check.name)
    head = [Span(mark, style), Span(" " * (_MARK_WIDTH - len(mark)))]
    margin = _MARK_WIDTH if name_width is None else _MARK_WIDTH + name_width + 2
    indent = " " * margin
    message = _wrapped(check.message, width - margin)
    if name_width is None:
        lines: list[Line] = [[*head, Span(name)]]
        lines += [[Span(indent + text)] for text in message]
    else:
        lines = [[*head, Span(name.ljust(name_width + 2)), Span(message[0])]]
        lines += [[Span(indent + text)] for text in message[1:]]
    if check.advice and not check.passed:
        advice = _wrapped(check.advice, width - margin - 2)
        lines.append([Span(f"{indent}→ {advice[0]}", "dim")])
        lines += [[Span(f"{indent}  {text}", "dim")] for text in advice[1:]]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in for_terminal(text).splitlines():
        # A path or a URL stays whole, so that it can be copied.
        lines += textwrap.wrap(
            line, max(width, 20), break_long_words=False, break_on_hyphens=False
        ) or [""]
    return lines or [""]


def _verdict(report: Report) -> Line:
    good = sum(check.passed for check in report.checks)
    missed = [check.severity for check in report.checks if not check.passed]
    counts = f"{good} of {len(report.checks)} checks passed"
    words = (("error", "failed"), ("warning", "with warnings"), ("info", "to note"))
    details = [f"{missed.count(s)} {word}" for s, word in words if missed.count(s)]
    text = ", ".join([counts, *details])
    if report.passed:
        return [Span("valid", "good"), Span(f": {text}")]
    return [Span("not valid", "bad"), Span(f": {text}")]
