"""Means of the scores of a batch, over all rows or by the values of a field."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import TypeAlias

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.parts import redactor
from amplifier_batch.functions import Value
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import WAITING
from amplifier_batch.scores import Scores, add_costs, read_scores
from amplifier_batch.statistics.pass_rates import PassRate, compute_rates
from amplifier_batch.table import Table
from amplifier_support.named_tuple import NamedTuple

_PREFIX = "score_"
_MAX_GROUPS = 1_000

_T = {1: 12.706, 2: 4.303}
"""The 97.5 % quantile of Student's distribution where the expansion below is not exact enough."""
_Z = 1.959964


class Mean(NamedTuple):
    """The mean of a score over the rows, each by the mean of its runs.

    Attributes:
        name: The score.
        rows: How many rows have a value.
        missing: How many runs have none.
        value: The mean; None for labels.
        low: The lower end of its 95 % interval; None for a single row.
        high: The upper end.
        labels: The runs of each label.
        agreement: The mean agreement of a judge that was asked several times; None without one.
        cost: US dollars that a judge has cost, 0 without one; None if a price is unknown.
    """

    name: str
    rows: int
    missing: int
    value: float | None
    low: float | None
    high: float | None
    labels: dict[str, int]
    agreement: float | None = None
    cost: float | None = 0.0


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
    scores, redact, runs = read_scores(folder), redactor().value, list[_Run]()
    names = sorted({name for by_name in scores.values() for name in by_name})
    for result in folder.results():
        if result["outcome"] == WAITING:
            continue
        own = scores.get((result["number"], result["repeat"]), {})
        values = [
            redact(score.value) if score and score.attempts == result["attempts"] else None
            for score in map(own.get, names)
        ]
        runs.append((result["number"], False, values))
    return [_with_judge(mean, scores) for mean in _means(runs, names)] if runs else []


def _with_judge(mean: Mean, scores: Scores) -> Mean:
    """The mean with what its judge has cost, and how far it agreed with itself."""
    own_scores = [by_name[mean.name] for by_name in scores.values() if mean.name in by_name]
    shares = [score.agreement for score in own_scores if score.agreement is not None]
    agreement = sum(shares) / len(shares) if shares else None
    cost = add_costs(*(score.cost for score in own_scores))
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


_Run: TypeAlias = tuple[object, bool, list[Value]]
"""The row of a run, whether it passed, and its scores."""


def _groups(table: Table, field: str) -> list[Group]:
    names = [name for name in table.columns if name.startswith(_PREFIX)]
    runs: dict[str, list[_Run]] = {}
    for cells in table.rows():
        if cells["outcome"] == WAITING:
            continue
        value = str(cells[field])
        if value not in runs and len(runs) == _MAX_GROUPS:
            raise UsageError(f"--by: {field!r} has more than {_MAX_GROUPS:,} values")
        passed = cells["outcome"] == Ending.OK.value
        scores = [cells[name] for name in names]
        runs.setdefault(value, []).append((cells["number"], passed, scores))
    return [_group(value, members, names) for value, members in sorted(runs.items())]


def _group(value: str, runs: list[_Run], names: Iterable[str]) -> Group:
    ended = Counter(row for row, _, _ in runs)
    passed = Counter(row for row, is_passed, _ in runs if is_passed)
    cells = Counter((number, passed[row]) for row, number in ended.items())
    [share] = compute_rates(cells, max(ended.values()), [1])
    means = _means(runs, [name.removeprefix(_PREFIX) for name in names])
    return Group(value, len(runs), share, means)


def _means(runs: list[_Run], names: Iterable[str]) -> list[Mean]:
    return [
        compute_mean(name, ((row, scores[index]) for row, _, scores in runs))
        for index, name in enumerate(names)
    ]


def mean_in_words(mean: Mean) -> str:
    """`0.62 (0.55 to 0.69)`, or the labels with their numbers."""
    if mean.value is None:
        return (
            ", ".join(f"{label} {number:,}" for label, number in sorted(mean.labels.items())) or "-"
        )
    if mean.low is None or mean.high is None:
        return _number(mean.value)
    return f"{_number(mean.value)} ({_number(mean.low)} to {_number(mean.high)})"


def mean_cells(mean: Mean) -> list[str]:
    """The name, the mean, and the numbers of rows and of missing scores."""
    return [mean.name, mean_in_words(mean), f"{mean.rows:,}", f"{mean.missing:,}"]


def judge_in_words(mean: Mean) -> list[str]:
    """The agreement and the cost of the judge, as far as there are any."""
    agreement = "" if mean.agreement is None else f"{mean.agreement:.0%}"
    if mean.cost is None:
        return [agreement, "unknown"]
    return [agreement, describe.cost(Decimal(str(mean.cost))) if mean.cost else ""]


def _number(value: float) -> str:
    """A number with three digits, or all digits before the point if there are more."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def compute_mean(name: str, values: Iterable[tuple[object, Value]]) -> Mean:
    """The mean of a score.

    The interval is Student's over the means of the rows: runs of the same row resemble each other and must not narrow it.

    Args:
        name: The score.
        values: The row and the value of each run.
    """
    by_row: dict[object, list[float]] = {}
    labels: dict[str, int] = {}
    missing = 0
    for row, value in values:
        if value is None:
            missing += 1
        elif isinstance(value, str):
            labels[value] = labels.get(value, 0) + 1
        else:
            by_row.setdefault(row, []).append(value)
    means = [math.fsum(runs) / len(runs) for runs in by_row.values()]
    if not means:
        return Mean(name, 0, missing, None, None, None, labels)
    mean = math.fsum(means) / len(means)
    if len(means) == 1:
        return Mean(name, 1, missing, mean, None, None, labels)
    freedom = len(means) - 1
    variance = math.fsum((value - mean) ** 2 for value in means) / freedom
    half = student_quantile(freedom) * math.sqrt(variance / len(means))
    return Mean(name, len(means), missing, mean, mean - half, mean + half, labels)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution with so many degrees of freedom, exact to 0.5 %."""
    if freedom in _T:
        return _T[freedom]
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
