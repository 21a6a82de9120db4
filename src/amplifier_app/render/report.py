"""Reports of checks as text: `module validate`, `doctor` and `plan check`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import is_dumb, terminal_width
from amplifier_app.render.ansi import paint
from amplifier_app.render.table import Column, table
from amplifier_app.runtime import describe
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.base.checks import Check, Report
    from amplifier_app.runtime.plan_check import CheckedModule, CheckReport
    from amplifier_app.runtime.request_weight import Weight

Style = Literal["good", "bad", "warn", "dim", "bold", ""]

_COLOURS = {"good": "green", "bad": "bold red", "warn": "yellow", "dim": "dim", "bold": "bold"}
_MARKS: dict[str, tuple[str, Style]] = {
    "good": ("ok  ", "good"),
    "bad": ("FAIL", "bad"),
    "warn": ("warn", "warn"),
    "note": ("note", "dim"),
}
_STATES = {"error": "bad", "warning": "warn", "info": "note"}

_PLAN_COLUMNS = (
    Column("MODULE", "wrap", least=34),
    Column("TYPE", drop=1),
    Column("FROM", "middle", least=16),
    Column("VERSION", drop=2),
    Column("STATUS", "wrap", least=16),
)

_WEIGHT_COLUMNS = (
    Column("TOKENS", right=True),
    Column("PART"),
    Column("NAME", "middle", least=20),
    Column("FROM", "middle", drop=1, least=20),
)

_MARK_WIDTH = 6
_MIN_MESSAGE_WIDTH = 40
"""Minimum columns for a message next to the check names; otherwise it goes below the name."""


class Span(NamedTuple):
    """A styled piece of a line."""

    text: str
    style: Style = ""


Line = list[Span]


def print_report(report: Report) -> None:
    """Print the report: coloured on a terminal, plain text in a pipe."""
    print_lines(lambda width: report_lines(report, width=width))


def print_lines(lines_of: Callable[[int], list[Line]]) -> None:
    """Print lines: coloured on a terminal, plain text in a pipe.

    Args:
        lines_of: Returns the lines for a width in columns.
    """
    width = terminal_width(1) if sys.stdout.isatty() else None
    if width is None:
        # Not wrapped, so that lines can be searched.
        for line in lines_of(sys.maxsize):
            print("".join(span.text for span in line).rstrip())
        return
    colours = {} if is_dumb() else _COLOURS
    for line in lines_of(min(width, 120)):
        print("".join(paint(span.text, colours.get(span.style, "")) for span in line))


def report_lines(report: Report, *, width: int) -> list[Line]:
    """Return the report as styled lines of at most `width` columns, without control characters.

    Longer words, such as paths, are not broken, so that they can be copied.
    """
    kind = report.kind or "module"
    lines: list[Line] = [[Span(f"{kind}: {one_line(report.subject, 1000)}", "bold")], []]
    lines += lines_of_checks(report.checks, width)
    if report.output and not report.passed:
        lines += [[], [Span("Last output:", "dim")]]
        for text in for_terminal(report.output).splitlines():
            lines.append([Span(f"  {text}", "dim")])
    return [*lines, [], _verdict(report)]


def lines_of_checks(checks: Sequence[Check], width: int) -> list[Line]:
    """Return the lines of all checks: state, message, and a fix if it failed."""
    name_width = max((len(one_line(check.name)) for check in checks), default=0)
    fits = width - (_MARK_WIDTH + name_width + 2) >= _MIN_MESSAGE_WIDTH
    lines: list[Line] = []
    for check in checks:
        lines += _check_lines(check, name_width if fits else None, width)
    return lines


def _check_lines(check: Check, name_width: int | None, width: int) -> list[Line]:
    """Return a check with its message next to its name, or below it in narrow terminals."""
    mark, style = _MARKS["good" if check.passed else _STATES[check.severity]]
    name = one_line(check.name)
    head = [Span(mark, style), Span(" " * (_MARK_WIDTH - len(mark)))]
    margin = _MARK_WIDTH if name_width is None else _MARK_WIDTH + name_width + 2
    indent = " " * margin
    message = _wrapped(check.message, width - margin)
    first = name if name_width is None else name.ljust(name_width + 2) + message.pop(0)
    lines: list[Line] = [[*head, Span(first)], *([Span(indent + text)] for text in message)]
    if check.advice and not check.passed:
        advice = _wrapped(check.advice, width - margin - 2)
        lines.append([Span(f"{indent}→ {advice[0]}", "dim")])
        lines += [[Span(f"{indent}  {text}", "dim")] for text in advice[1:]]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in for_terminal(text).splitlines():
        # Paths and URLs are not broken, so that they can be copied.
        lines += textwrap.wrap(
            line, max(width, 20), break_long_words=False, break_on_hyphens=False
        ) or [""]
    return lines or [""]


def _verdict(report: Report) -> Line:
    good = sum(check.passed for check in report.checks)
    missed = [check.severity for check in report.checks if not check.passed]
    counts = f"{good} of {len(report.checks)} checks passed"
    words = (("error", "failed"), ("warning", "with warnings"), ("info", "informational"))
    details = [f"{missed.count(s)} {word}" for s, word in words if missed.count(s)]
    text = ", ".join([counts, *details])
    verdict = Span("valid", "good") if report.passed else Span("not valid", "bad")
    return [verdict, Span(f": {text}")]


def plan_module_lines(report: CheckReport, width: int | None) -> list[str]:
    """Return the modules as a table; for `width`, see `amplifier_app.render.table.table`."""
    return table(_PLAN_COLUMNS, [_plan_row(module) for module in report.modules], width)


def weight_lines(weight: Weight, width: int | None) -> list[str]:
    """Return the parts of a request as a table, largest first."""
    parts = sorted(weight.parts, key=lambda part: -part.tokens)
    rows = [
        (f"{part.tokens:,}", part.kind, one_line(part.name) or "-", str(part.at or "-"))
        for part in parts
    ]
    return table(_WEIGHT_COLUMNS, rows, width)


def _weight_text(weight: Weight, max_tokens: int | None) -> str:
    about = "" if weight.is_counted else "about "
    limit = "" if max_tokens is None else f" of {max_tokens:,}"
    text = f"{about}{weight.total:,}{limit} tokens a request to {weight.model or 'the model'}"
    if weight.cost is None or weight.cached_cost is None:
        return text
    cached = describe.cost(weight.cached_cost)
    return f"{text}: {describe.cost(weight.cost)}, {cached} from the cache"


def plan_verdict(report: CheckReport) -> str:
    """Return the summary with every problem and every warning."""
    warnings = [f"amplifier: {warning}" for warning in report.warnings]
    warnings += [f"amplifier: sandbox: {item}" for item in report.sandbox]
    if not report.findings:
        mounted = sum(item.status == "ok" and item.agent is None for item in report.modules)
        summary = f"amplifier: {report.name} is OK: {mounted} modules loaded"
        # What conditions leave out was not looked for.
        nothing = [item.key for item in report.modules if item.status == "skipped" and item.found]
        if nothing:
            count = describe.count(len(nothing), "module")
            summary += f"; {count} mounted nothing: {', '.join(nothing)}"
        lines = [*warnings, summary]
        if report.weight is not None:
            text = _weight_text(report.weight, report.max_tokens)
            lines.append(f"amplifier: {'too many tokens: ' if report.is_too_heavy else ''}{text}")
        return for_terminal("\n".join(lines))
    problems = [str(finding.problem) for finding in report.findings]
    count = describe.count(len(problems), "problem")
    return for_terminal("\n".join([*warnings, f"amplifier: {report.name} has {count}", *problems]))


def _plan_row(module: CheckedModule) -> tuple[str, ...]:
    resolved = module.found
    name = module.module if module.key == module.module else f"{module.module} ({module.key})"
    name = name if module.agent is None else f"{module.agent}: {name}"
    status = f"{module.status}: {module.reason}" if module.reason else module.status
    if resolved is None:
        return (name, module.kind, "-", "-", status)
    source = resolved.place if resolved.place in ("bundled", "installed") else resolved.text
    return (name, module.kind, source, resolved.version or (resolved.commit or "-")[:12], status)
