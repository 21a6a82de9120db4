"""The report of `amplifier module validate` for a person."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Literal, NamedTuple

from amplifier_app.render.sanitize import for_terminal, one_line

if TYPE_CHECKING:
    from amplifier_app.sources.validation import Check, Report

Style = Literal["good", "bad", "warn", "dim", "bold", ""]

_COLOURS = {"good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim", "bold": "bold"}
_MARKS: dict[str, tuple[str, Style]] = {
    "good": ("ok  ", "good"),
    "bad": ("FAIL", "bad"),
    "warn": ("warn", "warn"),
}


class Span(NamedTuple):
    """A piece of a line with its style."""

    text: str
    style: Style = ""


Line = list[Span]


def print_report(report: Report) -> None:
    """Write the report to stdout: with colours on a terminal, as plain text in a pipe."""
    if not sys.stdout.isatty():
        # Not wrapped: whoever reads it searches for lines.
        for line in report_lines(report, width=sys.maxsize):
            print("".join(span.text for span in line).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    # Texts of a module are `Text`, never markup: a bracket in them is a bracket.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in report_lines(report, width=min(console.width, 120)):
        text = Text()
        for span in line:
            text.append(span.text, style=_COLOURS.get(span.style, ""))
        console.print(text)


def report_lines(report: Report, *, width: int) -> list[Line]:
    """The report as styled lines of at most `width` columns, control characters removed."""
    kind = report.kind or "module"
    lines: list[Line] = [[Span(one_line(f"{kind} at {report.path}"), "bold")], []]
    name_width = max((len(check.name) for check in report.checks), default=0)
    for check in report.checks:
        lines += _check_lines(check, name_width, width)
    if report.output and not report.passed:
        lines += [[], [Span("The end of what it wrote:", "dim")]]
        for text in for_terminal(report.output).splitlines():
            lines.append([Span(f"  {text}", "dim")])
    return [*lines, [], _verdict(report)]


def _check_lines(check: Check, name_width: int, width: int) -> list[Line]:
    state = "good" if check.passed else "bad" if check.severity == "error" else "warn"
    mark, style = _MARKS[state]
    indent = " " * (4 + 2 + name_width + 2)
    room = max(width - len(indent), 20)
    message = _wrapped(check.message, room)
    head = [Span(mark, style), Span(f"  {one_line(check.name).ljust(name_width)}  ")]
    lines: list[Line] = [[*head, Span(message[0])]]
    lines += [[Span(indent + text)] for text in message[1:]]
    if check.advice and not check.passed:
        advice = _wrapped(check.advice, room - 2)
        lines.append([Span(f"{indent}→ {advice[0]}", "dim")])
        lines += [[Span(f"{indent}  {text}", "dim")] for text in advice[1:]]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in for_terminal(text).splitlines():
        # A path or a URL stays whole, so that it can be copied.
        lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    return lines or [""]


def _verdict(report: Report) -> Line:
    good = sum(check.passed for check in report.checks)
    errors = len(report.failed)
    warnings = len(report.checks) - good - errors
    counts = f"{good} of {len(report.checks)} checks passed"
    details = [f"{errors} failed"] * bool(errors) + [f"{warnings} with warnings"] * bool(warnings)
    text = ", ".join([counts, *details])
    if report.passed:
        return [Span("valid", "good"), Span(f": {text}")]
    return [Span("not valid", "bad"), Span(f": {text}")]
