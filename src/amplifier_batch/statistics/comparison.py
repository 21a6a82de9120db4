"""Compare two batches over the same rows: what differs, and whether that is more than chance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.results import read_dollars, read_seconds
from amplifier_support.named_tuple import NamedTuple

RESAMPLES = 2000
CONFIDENCE = 0.98
"""Two equal plans are called different in about 2 of 100 comparisons."""

_SEED = 0

Verdict = Literal["better", "worse", "undecided"]


class Difference(NamedTuple):
    """One measure of both batches, over the rows in which both have it.

    Attributes:
        name: The measure.
        a: Its mean in the first batch.
        b: Its mean in the second one.
        low: The lower end of the interval of the mean difference, B less A.
        high: The upper end.
        rows: How many rows both have.
    """

    name: str
    a: float
    b: float
    low: float
    high: float
    rows: int

    @property
    def is_clear(self) -> bool:
        """True if the interval does not contain 0."""
        return self.low > 0 or self.high < 0


class Flip(NamedTuple):
    """A row that passed in one batch only, or more often in one of them."""

    number: int
    row: str
    a: str
    b: str


class Comparison(NamedTuple):
    """The result of a comparison.

    Attributes:
        measures: The share of rows that passed first, then cost, tokens, time, steps and tool calls.
        flips: The rows that passed in one of them only or more often, in the order of the input.
        unpaired: Rows that have ended in one of them only.
    """

    measures: Sequence[Difference]
    flips: Sequence[Flip]
    unpaired: int

    @property
    def verdict(self) -> Verdict:
        """Judge whether more rows pass in the second batch."""
        passed = self.measures[0]
        if not passed.is_clear:
            return "undecided"
        return "better" if passed.low > 0 else "worse"

    def is_worse_by(self, tolerance: float) -> bool:
        """Return True if the share of rows that pass is lower by clearly more than a tolerance."""
        return self.measures[0].high < -tolerance


def compare(a: BatchFolder, b: BatchFolder) -> Comparison:
    """Compare two batches.

    Raises:
        ConfigError: They have different inputs, or no row has ended in both.
        SessionError: The results cannot be read.
    """
    if a.facts["input_digest"] != b.facts["input_digest"]:
        raise ConfigError(
            f"{a.shown} and {b.shown} have different inputs",
            hint="Run both plans over the same input: amplifier batch run PLAN INPUT -o FOLDER",
        )
    first, second = _by_row(a), _by_row(b)
    rows = [row for row in first if row in second]
    if not rows:
        raise ConfigError(f"no row has ended in both {a.shown} and {b.shown}")
    rows.sort(key=lambda row: first[row].number)
    pairs = [(first[row], second[row]) for row in rows]
    return Comparison(
        _differences(pairs),
        [
            Flip(one.number, row, one.outcome, other.outcome)
            for row, (one, other) in zip(rows, pairs, strict=True)
            if one.values["passed"] != other.values["passed"]
        ],
        len(first) + len(second) - 2 * len(rows),
    )


class _Row(NamedTuple):
    number: int
    outcome: str
    values: Mapping[str, float | None]


def _by_row(batch: BatchFolder) -> dict[str, _Row]:
    """Each row; one that ran several times with the means of its runs."""
    runs: dict[str, list[_Row]] = {}
    for result in batch.results():
        if result["outcome"] == WAITING:
            continue
        row = _Row(result["number"], result["outcome"], _values(result))
        runs.setdefault(result["row"], []).append(row)
    return {row: rows[0] if len(rows) == 1 else _average(rows) for row, rows in runs.items()}


def _average(runs: Sequence[_Row]) -> _Row:
    values: dict[str, float | None] = {}
    for name in runs[0].values:
        known = [value for run in runs if (value := run.values[name]) is not None]
        values[name] = sum(known) / len(known) if known else None
    passed = sum(run.outcome == Ending.OK.value for run in runs)
    return _Row(runs[0].number, f"{passed} of {len(runs)} passed", values)


def _values(result: Record) -> dict[str, float | None]:
    return {
        "passed": float(result["outcome"] == Ending.OK.value),
        "cost in dollars": read_dollars(result),
        "tokens": (result.get("usage") or {}).get("total_tokens"),
        "seconds": read_seconds(result),
        "steps": result["steps"],
        "tool calls": len(result["tools"]),
    }


def _differences(pairs: Sequence[tuple[_Row, _Row]]) -> list[Difference]:
    """Every measure with its interval."""
    both: dict[str, list[tuple[float, float]]] = {}
    for name in pairs[0][0].values:
        both[name] = [
            (mine, theirs)
            for a, b in pairs
            if (mine := a.values[name]) is not None and (theirs := b.values[name]) is not None
        ]
    intervals = _intervals({name: [b - a for a, b in values] for name, values in both.items()})
    differences: list[Difference] = []
    for name, values in both.items():
        if values:
            a, b = (sum(side) / len(values) for side in zip(*values, strict=True))
            differences.append(Difference(name, a, b, *intervals[name], len(values)))
    return differences


def _intervals(columns: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    """The interval of each mean by resampling the rows (bootstrap, percentiles).

    Measures of the same rows share their samples: drawing them takes most of the time.
    """
    means: dict[str, list[float]] = {name: [] for name in columns}
    by_size: dict[int, list[str]] = {}
    for name, column in columns.items():
        if len(set(column)) == 1:
            # Every sample has the same mean.
            means[name] = [column[0]] * RESAMPLES
        elif column:
            by_size.setdefault(len(column), []).append(name)
    for size, names in by_size.items():
        draw, rows = random.Random(_SEED), range(size)
        for _ in range(RESAMPLES):
            sample = draw.choices(rows, k=size)
            for name in names:
                means[name].append(sum(map(columns[name].__getitem__, sample)) / size)
    cut = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    ordered = {name: sorted(found) for name, found in means.items() if found}
    return {name: (found[cut], found[-cut - 1]) for name, found in ordered.items()}
