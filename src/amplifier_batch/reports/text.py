"""Reports of a batch for other programs: Markdown, JUnit XML and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line
from amplifier_app.render.junit import Case, suite
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import redactor
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import Counts
from amplifier_batch.record.results import read_dollars, read_reason, read_seconds
from amplifier_batch.statistics.pass_rates import CONFIDENCE, pass_rates

_COLUMNS = (
    "number",
    "row",
    "repeat",
    "outcome",
    "exit_code",
    "cost_usd",
    "steps",
    "seconds",
    "session",
    "response",
)
_MAX_CELL = 100
_OK = Ending.OK.value

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make a spreadsheet treat a cell as a formula; the last four are full-width."""


def as_markdown(folder: BatchFolder) -> Iterator[str]:
    """The outcomes and the rows that failed, as two tables."""
    counts, _ = folder.counts()
    passed, redact = counts.outcomes[_OK], redactor().text
    yield f"# Batch {_cell(folder.path.name)}: {passed:,} of {folder.runs:,} {folder.unit}s passed\n\n"
    yield f"| outcome | {folder.unit}s |\n|---|---:|\n"
    for name, number in counts.outcomes.most_common():
        yield f"| {name} | {number:,} |\n"
    yield from _rates(folder, counts)
    if counts.cost:
        prices = ", at batch prices" if folder.facts.get("economy") else ""
        yield f"\nCost: {describe.cost(counts.cost)}{prices}\n"
    failed = (result for result in folder.results(by_number=True) if result["outcome"] != _OK)
    head = "\n| number | row | outcome | why |\n|---:|---|---|---|\n"
    for result in failed:
        name, why = folder.read_name(result), redact(read_reason(result))
        cells = (str(result["number"]), name, result["outcome"], why)
        yield head + "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"
        head = ""


def _rates(folder: BatchFolder, counts: Counts) -> Iterator[str]:
    head = f"\n| | rate | {CONFIDENCE:.0%} interval |\n|---|---:|---:|\n"
    for rate in pass_rates(folder, counts):
        name = f"pass@{rate.k}" if folder.repeat > 1 else "passed"
        yield f"{head}| {name} | {rate.value:.1%} | {rate.low:.1%} to {rate.high:.1%} |\n"
        head = ""


def _cell(text: str) -> str:
    """Text in one line of a table, with its Markdown and HTML escaped."""
    line = one_line(text, _MAX_CELL)
    return "".join(f"\\{one}" if one in "\\`*_[]<>|~" else one for one in line)


def as_junit(folder: BatchFolder) -> Iterator[str]:
    """A test suite in which every row is a case: a failure if a check failed, otherwise an error."""
    counts, _ = folder.counts()
    failed, redact = counts.outcomes[Ending.CHECK_FAILED.value], redactor().text
    return suite(
        folder.path.name,
        (
            _case(folder.read_name(result), result, redact)
            for result in folder.results(by_number=True)
        ),
        tests=counts.ended,
        failures=failed,
        errors=counts.ended - counts.outcomes[_OK] - failed,
    )


def _case(name: str, result: Record, redact: Callable[[str], str]) -> Case:
    outcome = result["outcome"]
    problem = "failure" if outcome == Ending.CHECK_FAILED.value else "error"
    return Case(
        "amplifier.batch",
        name,
        None if outcome == _OK else problem,
        redact(read_reason(result)),
        redact(result["response"]),
        read_seconds(result),
    )


def as_csv(folder: BatchFolder) -> Iterator[str]:
    """A table of all rows for a spreadsheet; no cell is a formula."""
    redact = redactor().text
    yield _csv_line(_COLUMNS)
    for result in folder.results(by_number=True):
        yield _csv_line(
            (
                result["number"],
                _as_text(result["row"]),
                result["repeat"],
                result["outcome"],
                result["exit_code"],
                read_dollars(result),
                result["steps"],
                f"{read_seconds(result):.3f}",
                result["session_id"],
                _as_text(redact(result["response"])),
            )
        )


def _as_text(text: str) -> str:
    """Text of a row or a model that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()
