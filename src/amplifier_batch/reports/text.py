"""Reports of a batch for other programs: Markdown and JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import one_line
from amplifier_app.render.junit import Case, suite
from amplifier_app.runtime.export.parts import redactor
from amplifier_batch.record.folder import SCORES, BatchFolder, approve_command, find_waiting
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import WAITING, Counts
from amplifier_batch.record.results import read_reason, read_seconds
from amplifier_batch.statistics.pass_rates import CONFIDENCE, pass_rates
from amplifier_batch.statistics.score_means import (
    batch_means,
    group_means,
    judge_in_words,
    mean_cells,
    mean_in_words,
)
from amplifier_batch.statistics.summary import cost_in_words

_Problem = Literal["failure", "error", "skipped"]
_PROBLEMS: Mapping[str, _Problem] = {
    Ending.CHECK_FAILED.value: "failure",
    WAITING: "skipped",
}
_MAX_CELL = 100
_OK = Ending.OK.value


def as_markdown(folder: BatchFolder) -> Iterator[str]:
    """The outcomes, the rows that failed, and what waits for approval, as tables."""
    counts, _ = folder.counts()
    passed, redact = counts.outcomes[_OK], redactor().text
    yield f"# Batch {_cell(folder.path.name)}: {passed:,} of {folder.runs:,} {folder.unit}s passed\n\n"
    yield f"| outcome | {folder.unit}s |\n|---|---:|\n"
    for name, number in counts.outcomes.most_common():
        yield f"| {name} | {number:,} |\n"
    yield from _rates(folder, counts)
    yield from _means(folder)
    if cost := cost_in_words(counts.cost, counts.cached):
        prices = ", at batch prices" if folder.facts.get("economy") else ""
        yield f"\nCost: {cost}{prices}\n"
    failed = folder.index_results(selects=lambda outcome: outcome not in (_OK, WAITING))
    head = "\n| number | row | outcome | why |\n|---:|---|---|---|\n"
    for result in folder.read_results(failed):
        name, why = folder.read_name(result), redact(read_reason(result))
        cells = (str(result["number"]), name, result["outcome"], why)
        yield head + "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"
        head = ""
    head = "\n| waits for approval | question | call | state |\n|---|---:|---|---|\n"
    for row in find_waiting(folder):
        for number, call, state in row.list_calls():
            cells = (row.name, number, redact(call), redact(state))
            yield head + "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"
            head = ""
    if not head:
        yield f"\nAnswer with `{approve_command(folder)}`.\n"


def _rates(folder: BatchFolder, counts: Counts) -> Iterator[str]:
    head = f"\n| | rate | {CONFIDENCE:.0%} interval |\n|---|---:|---:|\n"
    for rate in pass_rates(folder, counts):
        name = f"pass@{rate.k}" if folder.repeat > 1 else "passed"
        yield f"{head}| {name} | {rate.value:.1%} | {rate.low:.1%} to {rate.high:.1%} |\n"
        head = ""


def _means(folder: BatchFolder) -> Iterator[str]:
    means = batch_means(folder) if (folder.path / SCORES).exists() else []
    judged = any(mean.cost != 0 for mean in means)
    heads = ["score", f"mean ({CONFIDENCE:.0%} interval)", "rows", "missing"]
    heads += ["agreement", "judge"] if judged else []
    if means:
        yield f"\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}\n"
    for mean in means:
        cells = [*mean_cells(mean), *(judge_in_words(mean) if judged else ())]
        yield f"| {' | '.join(map(_cell, cells))} |\n"


def as_groups(folder: BatchFolder, field: str) -> Iterator[str]:
    """The share that passed and the means of the scores, by the values of a column, as a table."""
    groups = group_means(folder, field)
    names = [mean.name for mean in groups[0].means] if groups else []
    yield f"| {' | '.join(map(_cell, (field, f'{folder.unit}s', 'passed', *names)))} |\n"
    yield f"|---|{'---:|' * (2 + len(names))}\n"
    for group in groups:
        means = [_cell(mean_in_words(mean)) for mean in group.means]
        cells = (_cell(group.value) or "-", f"{group.runs:,}", str(group.passed), *means)
        yield f"| {' | '.join(cells)} |\n"


def _cell(text: str) -> str:
    """Text in one line of a table, with its Markdown and HTML escaped."""
    line = one_line(text, _MAX_CELL)
    return "".join(
        f"\\{character}" if character in "\\`*_[]<>|~" else character for character in line
    )


def as_junit(folder: BatchFolder) -> Iterator[str]:
    """A test suite in which every row is a case: a failure if a check failed, skipped if it waits, otherwise an error."""
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
        errors=counts.decided - counts.outcomes[_OK] - failed,
        skipped=counts.outcomes[WAITING],
    )


def _case(name: str, result: Record, redact: Callable[[str], str]) -> Case:
    outcome = result["outcome"]
    problem: _Problem | None = None if outcome == _OK else _PROBLEMS.get(outcome, "error")
    return Case(
        "amplifier.batch",
        name,
        problem,
        redact(read_reason(result)),
        redact(result["response"]),
        read_seconds(result),
    )
