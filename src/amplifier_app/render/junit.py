"""Results of tests and checks: JUnit XML for CI servers, and reports on the checks of a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from amplifier_app.base.errors import AppError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import xml_text
from amplifier_app.runtime.checks import CheckResult
from amplifier_support.files import system_errors_as
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


# -- the checks of a run


def write_report(
    kind: str, file: Path, outcome: Outcome, response: str, checks: Sequence[CheckResult]
) -> None:
    """Write a report.

    Args:
        kind: One of `KINDS`.
        file: Where to; replaced if it exists.
        outcome: How the run ended.
        response: The answer.
        checks: The last result of each check.

    Raises:
        AppError: The file cannot be written.
    """
    text = redact(KINDS[kind](outcome, response, checks))
    with system_errors_as(AppError, f"--report: cannot write {file}"):
        file.write_text(text, encoding="utf-8", errors="replace")


def _as_junit(outcome: Outcome, response: str, checks: Sequence[CheckResult]) -> str:
    """The run and its checks as test cases in JUnit XML."""
    failed = sum(not check.passed for check in checks)
    # It failed for another reason than a check.
    broken = outcome.ending not in (Ending.OK, Ending.CHECK_FAILED)
    run = Case("amplifier", "run", output=response)
    if broken:
        run = Case("amplifier", "run", "error", outcome.message)
    cases = [
        Case(
            "amplifier.check",
            check.name,
            None if check.passed else "failure",
            check.ending,
            check.output,
            check.duration_ms / 1000,
        )
        for check in checks
    ]
    return "".join(
        suite(
            "amplifier",
            [run, *cases],
            tests=1 + len(cases),
            failures=failed,
            errors=int(broken),
            seconds=sum(check.duration_ms for check in checks) / 1000,
        )
    )


def _as_markdown(outcome: Outcome, response: str, checks: Sequence[CheckResult]) -> str:
    """The ending, the checks as a table with the output of those that failed, and the answer."""
    lines = [f"# {'Passed' if outcome.ending is Ending.OK else 'Failed'}", ""]
    if outcome.ending is not Ending.OK:
        lines += [f"{outcome.message} (exit code {outcome.exit_code})", ""]
    if checks:
        lines += ["| check | result | time | runs |", "|---|---|---|---|"]
        for check in checks:
            result = "passed" if check.passed else check.ending
            name = " ".join(check.name.split()).replace("|", "\\|")
            lines.append(f"| `{name}` | {result} | {check.duration_ms} ms | {check.runs} |")
        lines.append("")
    for check in checks:
        if not check.passed:
            fence = _fence(check.output)
            lines += [f"## {check.name}", "", fence, check.output.rstrip("\n"), fence, ""]
    if response:
        lines += ["## Answer", "", response.rstrip("\n"), ""]
    return "\n".join(lines)


KINDS: Mapping[str, Callable[[Outcome, str, Sequence[CheckResult]], str]] = {
    "junit": _as_junit,
    "md": _as_markdown,
}
"""Kind of a report → function that writes it."""


def _fence(text: str) -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
