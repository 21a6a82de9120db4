"""Report tests: as lines for people, JSON, and JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from amplifier_app.render import junit
from amplifier_app.render.result import cost_object
from amplifier_kit.plan_tests.expectations import Tested

_NOTES = 5


class Progress:
    """Shows tests as they end: a line of dots per file, or a line per test.

    Args:
        write: Receives the text.
        total: How many tests there are.
        verbose: Whether each test has a line.
    """

    def __init__(self, write: Callable[[str], None], total: int, *, verbose: bool) -> None:
        self._write = write
        self._total = total
        self._verbose = verbose
        self._ended = 0
        self._file: str | None = None

    def show(self, tested: Tested) -> None:
        """Show a test that has ended."""
        self._ended += 1
        if self._verbose:
            share = self._ended * 100 // self._total
            recorded = ", recorded" if tested.recorded else ""
            took = f"({tested.seconds:.2f} s) [{share}%]"
            self._write(f"{tested.case.id} {tested.status}{recorded} {took}\n")
            return
        start = ""
        if tested.case.file != self._file:
            start = "\n" if self._file is not None else ""
            start += f"{tested.case.file} "
            self._file = tested.case.file
        end = "\n" if self._ended == self._total else ""
        self._write(f"{start}{_MARKS[tested.status]}{end}")

    def stop(self) -> None:
        """End the last line if some tests have not ended."""
        if self._file is not None and self._ended < self._total:
            self._write("\n")


_JUNIT: dict[str, Literal["failure", "error"] | None] = {
    "passed": None,
    "failed": "failure",
    "error": "error",
}
_MARKS = {"passed": ".", "failed": "F", "error": "E"}


def failure_lines(tested: Tested) -> Iterator[str]:
    """The failures of a test, each with the expectation and the result."""
    if tested.error is not None:
        yield f"{tested.case.at.file}:{tested.case.at.line}: {tested.error.message}"
        yield from _indented((tested.error.hint or "").splitlines())
    for failure in tested.failures:
        first, *rest = failure.lines
        yield f"{failure.at.file}:{failure.at.line}: {failure.what}: {first}"
        yield from _indented(rest)
    notes = list(dict.fromkeys(tested.notes))
    for note in notes[:_NOTES] if tested.status != "passed" else ():
        yield f"warning: {' '.join(note.split())}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def failures_text(tested: Sequence[Tested]) -> str:
    """The failures of all tests; empty if there are none."""
    lines: list[str] = []
    for test in tested:
        if test.status != "passed":
            lines += ["", f"{test.status.upper()} {test.case.id}"]
            lines += [f"  {line}" for line in failure_lines(test)]
    return "".join(f"{line}\n" for line in lines)


def summary(tested: Sequence[Tested], left: int, seconds: float) -> str:
    """The last line: how many passed, failed, and did not run."""
    counts = {status: sum(test.status == status for test in tested) for status in _MARKS}
    words = {"failed": "failed", "error": "could not run", "passed": "passed"}
    parts = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    recorded = sum(test.recorded for test in tested)
    if recorded:
        parts.append(f"{recorded} recorded")
    if left:
        parts.append(f"{left} not run")
    return f"{', '.join(parts) or 'no test ended'} in {seconds:.1f} s"


def as_json(tested: Sequence[Tested], left: int, seconds: float) -> dict[str, Any]:
    """All tests as one object."""
    return {
        "schema_version": 1,
        "passed": sum(test.status == "passed" for test in tested),
        "failed": sum(test.status == "failed" for test in tested),
        "errors": sum(test.status == "error" for test in tested),
        "not_run": left,
        "duration_ms": round(seconds * 1000),
        "tests": [_object(test) for test in tested],
    }


def _object(tested: Tested) -> dict[str, Any]:
    outcome = tested.error or tested.outcome
    return {
        "id": tested.case.id,
        "file": tested.case.file,
        "line": tested.case.at.line,
        "name": tested.case.name,
        "status": tested.status,
        "failures": [
            {"expectation": failure.what, "line": failure.at.line, "text": "\n".join(failure.lines)}
            for failure in tested.failures
        ],
        "error": None if tested.error is None else tested.error.message,
        "outcome": None if outcome is None else outcome.ending.value,
        "exit_code": None if outcome is None else outcome.exit_code,
        "response": tested.turn.response,
        "steps": tested.turn.steps,
        "cost": cost_object(tested.turn.cost),
        "notes": list(dict.fromkeys(tested.notes)),
        "duration_ms": round(tested.seconds * 1000),
    }


def as_junit(tested: Sequence[Tested]) -> str:
    """All tests as JUnit XML."""
    cases = [
        junit.Case(
            test.case.file,
            test.case.name,
            _JUNIT[test.status],
            _message(test),
            "\n".join(failure_lines(test)) or test.turn.response,
            test.seconds,
        )
        for test in tested
    ]
    return "".join(
        junit.suite(
            "amplifier",
            cases,
            tests=len(cases),
            failures=sum(test.status == "failed" for test in tested),
            errors=sum(test.status == "error" for test in tested),
            seconds=sum(test.seconds for test in tested),
        )
    )


def _message(tested: Tested) -> str:
    if tested.error is not None:
        return tested.error.message
    if not tested.failures:
        return ""
    first = tested.failures[0]
    return f"{first.what}: {first.lines[0]}"
