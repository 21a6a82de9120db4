"""Reports of the checks of a run: JUnit XML for CI servers, Markdown for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from amplifier_app.base.errors import AppError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.redact import redact
from amplifier_app.render.junit import Case, suite
from amplifier_app.runtime.checks import CheckResult


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
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise AppError(f"--report: cannot write {file}: {error.strerror}") from error


def junit(outcome: Outcome, response: str, checks: Sequence[CheckResult]) -> str:
    """The run and its checks as test cases in JUnit XML."""
    failed = sum(not check.passed for check in checks)
    broken = _is_broken(outcome)
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


def markdown(outcome: Outcome, response: str, checks: Sequence[CheckResult]) -> str:
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
    "junit": junit,
    "md": markdown,
}
"""Kind of a report → function that writes it."""


def _is_broken(outcome: Outcome) -> bool:
    """Return True if the run failed for another reason than a check."""
    return outcome.ending not in (Ending.OK, Ending.CHECK_FAILED)


def _fence(text: str) -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)
