"""Means of the scores of a batch, over all rows or by the values of a field."""

from __future__ import annotations

from collections.abc import Iterable

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import WAITING
from amplifier_batch.scores import Mean, Scores, Value, compute_mean, read_scores
from amplifier_batch.statistics.pass_rates import PassRate, compute_rates
from amplifier_batch.table import Table
from amplifier_support.named_tuple import NamedTuple

_PREFIX = "score_"
_MAX_GROUPS = 1_000


class Group(NamedTuple):
    """The rows that have one value of a field.

    Attributes:
        value: The value, as text.
        runs: How many runs have ended.
        passed: The share that passed.
        means: The means of their scores.
    """

    value: str
    runs: int
    passed: PassRate
    means: list[Mean]


def batch_means(folder: BatchFolder) -> list[Mean]:
    """The mean of each score of a batch.

    Raises:
        SessionError: The results cannot be read.
    """
    scores = read_scores(folder)
    means = [mean for group in _groups(Table(folder), None) for mean in group.means]
    return [_with_judge(mean, scores) for mean in means]


def _with_judge(mean: Mean, scores: Scores) -> Mean:
    """The mean with what its judge has cost, and how far it agreed with itself."""
    given = [by_name[mean.name] for by_name in scores.values() if mean.name in by_name]
    shares = [score.agreement for score in given if score.agreement is not None]
    agreement = sum(shares) / len(shares) if shares else None
    costs = [score.cost for score in given if score.is_judged]
    known = [cost for cost in costs if cost is not None]
    cost = sum(known) if len(known) == len(costs) else None
    return mean._replace(agreement=agreement, cost=cost)


def group_means(folder: BatchFolder, field: str) -> list[Group]:
    """The share that passed and the means of the scores, by the values of a column.

    Raises:
        UsageError: The column is unknown, or has too many values.
        SessionError: The results cannot be read.
    """
    table = Table(folder)
    if field not in table.columns:
        hint = f"Columns: {', '.join(table.columns)}"
        raise UsageError(f"--by: there is no column {field!r}", hint=hint)
    return _groups(table, field)


def _groups(table: Table, field: str | None) -> list[Group]:
    names = [name for name in table.columns if name.startswith(_PREFIX)]
    runs: dict[str, list[tuple[object, bool, list[Value]]]] = {}
    for cells in table.rows():
        if cells["outcome"] == WAITING:
            continue
        value = "" if field is None else str(cells[field])
        if value not in runs and len(runs) == _MAX_GROUPS:
            raise UsageError(f"--by: {field!r} has more than {_MAX_GROUPS:,} values")
        passed = cells["outcome"] == Ending.OK.value
        scores = [cells[name] for name in names]
        runs.setdefault(value, []).append((cells["number"], passed, scores))
    return [_group(value, found, names) for value, found in sorted(runs.items())]


def _group(value: str, runs: list[tuple[object, bool, list[Value]]], names: Iterable[str]) -> Group:
    passed = sum(is_passed for _, is_passed, _ in runs)
    [rate] = compute_rates({(1, 1): passed, (1, 0): len(runs) - passed}, 1)
    means = [
        compute_mean(name.removeprefix(_PREFIX), ((row, scores[index]) for row, _, scores in runs))
        for index, name in enumerate(names)
    ]
    return Group(value, len(runs), rate, means)


def mean_in_words(mean: Mean) -> str:
    """`0.62 (0.55 to 0.69)`, or the labels with their numbers."""
    if mean.value is None:
        return (
            ", ".join(f"{label} {number:,}" for label, number in sorted(mean.labels.items())) or "-"
        )
    if mean.low is None or mean.high is None:
        return _number(mean.value)
    return f"{_number(mean.value)} ({_number(mean.low)} to {_number(mean.high)})"


def _number(value: float) -> str:
    """A number with three digits, or all digits before the point if there are more."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
