"""Test results as JUnit XML, for CI servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from amplifier_app.base.sanitize import xml_text
from amplifier_support.named_tuple import NamedTuple


class Case(NamedTuple):
    """A test case.

    Attributes:
        group: The dotted name of its group.
        name: Its name.
        problem: `failure` if it failed, `error` if it could not be decided, `skipped` if it has not come to its end;
            None if it passed.
        message: Why, in a line.
        output: What it wrote.
        seconds: How long it ran; None if unknown.
    """

    group: str
    name: str
    problem: Literal["failure", "error", "skipped"] | None = None
    message: str = ""
    output: str = ""
    seconds: float | None = None


def suite(
    name: str,
    cases: Iterable[Case],
    *,
    tests: int,
    failures: int,
    errors: int,
    skipped: int = 0,
    seconds: float | None = None,
) -> Iterator[str]:
    """A test suite in pieces; the counts come first, so that the cases are read only once."""
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}"'
    if skipped:
        counts += f' skipped="{skipped}"'
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuite name={_attribute(name)} {counts}{_time(seconds)}>\n"
    for case in cases:
        head = f"classname={_attribute(case.group)} name={_attribute(case.name)}"
        yield f"  <testcase {head}{_time(case.seconds)}>\n    {_body(case)}\n  </testcase>\n"
    yield "</testsuite>\n"


def _body(case: Case) -> str:
    output = escape(xml_text(case.output))
    if case.problem is None:
        return f"<system-out>{output}</system-out>"
    return f"<{case.problem} message={_attribute(case.message)}>{output}</{case.problem}>"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f' time="{seconds:.3f}"'


def _attribute(text: str) -> str:
    return quoteattr(xml_text(text))
