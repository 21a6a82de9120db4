"""Compare two batches over the same rows: what differs, whether that is more than chance, and how many rows it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import sub
from statistics import NormalDist
from typing import Literal

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.journal import Record
from amplifier_batch.record.results import read_dollars, read_passed, read_seconds
from amplifier_batch.scores import Score, read_scores
from amplifier_batch.statistics.anytime import DECIDED, Anytime, place
from amplifier_batch.statistics.paired import CONFIDENCE, paired_test
from amplifier_support.named_tuple import NamedTuple

_PASSED = "passed"
_OF_THE_RUN = ("cost in dollars", "tokens", "seconds", "steps", "tool calls")

Verdict = Literal["better", "worse", "undecided"]


class Difference(NamedTuple):
    """One measure of both batches, over the rows in which both have it.

    Attributes:
        name: The measure.
        a: Its mean in the first batch.
        b: Its mean in the second one.
        low: The lower end of the interval of the mean difference, B less A; None if there are too few rows for one.
        high: The upper end.
        p: The chance of a difference as large as this one if the plans are the same; see `paired`.
        rows: How many rows both have.
        is_clear: True if the difference is more than chance.
    """

    name: str
    a: float
    b: float
    low: float | None
    high: float | None
    p: float
    rows: int
    is_clear: bool


class Flip(NamedTuple):
    """A row that passed in one batch only, or more often in one of them."""

    number: int
    row: str
    a: str
    b: str


class Comparison(NamedTuple):
    """The result of a comparison.

    Attributes:
        measures: The share of rows that passed first, then scores, cost, tokens, time, steps and tool calls.
        flips: The rows that passed in one of them only or more often, in the order of the input.
        unpaired: Rows that have ended in one of them only, or of which it is unknown whether they passed.
        differing: The share of rows that pass in one of them only; for rows that run several times, the mean square of the
            differences of their shares.
        until_decided: True if the batches stopped as soon as one was clearly better: the interval of the share that
            passed then holds at any time, and is from the rows until that was so.
    """

    measures: Sequence[Difference]
    flips: Sequence[Flip]
    unpaired: int
    differing: float
    until_decided: bool = False

    @property
    def verdict(self) -> Verdict:
        """Judge whether more rows pass in the second batch."""
        passed = self.measures[0]
        if not passed.is_clear:
            return "undecided"
        return "better" if passed.b > passed.a else "worse"

    def is_worse_by(self, tolerance: float) -> bool:
        """Return True if the share of rows that pass is lower by clearly more than a tolerance."""
        high = self.measures[0].high
        is_beyond = tolerance == 0 or (high is not None and high < -tolerance)
        return self.verdict == "worse" and is_beyond


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
    first, second = _read_side(a), _read_side(b)
    mine, theirs = first.rows, second.rows
    rows = [row for row in mine if row in theirs and mine[row].is_known and theirs[row].is_known]
    if not rows:
        raise ConfigError(f"no row has ended in both {a.shown} and {b.shown}")
    rows.sort(key=lambda row: mine[row].number)
    pairs = [(mine[row], theirs[row]) for row in rows]
    passed = [(one.values[0] or 0.0, other.values[0] or 0.0) for one, other in pairs]
    differences = _differences(first.names, second.names, pairs)
    until_decided = a.facts.get("until") == b.facts.get("until") == DECIDED
    if until_decided:
        ordered = sorted(zip(rows, passed, strict=True), key=lambda row: place(row[0]))
        differences[0] = _until_decided([of_row for _, of_row in ordered])
    return Comparison(
        differences,
        [
            Flip(one.number, row, one.outcome, other.outcome)
            for row, (one, other) in zip(rows, pairs, strict=True)
            if one.values[0] != other.values[0]
        ],
        len(mine.keys() | theirs.keys()) - len(rows),
        math.fsum((two - one) ** 2 for one, two in passed) / len(pairs),
        until_decided,
    )


def _until_decided(rows: Sequence[tuple[float, float]]) -> Difference:
    """The share of rows that passed, up to the first row with which one batch is clearly better."""
    anytime, passed = Anytime(), list[tuple[float, float]]()
    for first, second in rows:
        passed.append((first, second))
        anytime.add(second - first)
        if anytime.is_decided:
            break
    stats = anytime.verdict()
    a, b = (math.fsum(side) / len(passed) for side in zip(*passed, strict=True))
    return Difference(_PASSED, a, b, stats.low, stats.high, stats.p, stats.rows, stats.is_clear)


_Values = tuple[float | None, ...]


class _Row(NamedTuple):
    """A row of one batch; one that ran several times has the means of its runs."""

    number: int
    outcome: str
    values: _Values

    @property
    def is_known(self) -> bool:
        """True if it is known whether the row passed, at least in one of its runs."""
        return self.values[0] is not None


class _Side(NamedTuple):
    """One batch: the names of its measures, and its rows with their values."""

    names: Sequence[str]
    rows: Mapping[str, _Row]


def _read_side(batch: BatchFolder) -> _Side:
    runs: dict[str, list[_Row]] = {}
    scores = read_scores(batch)
    names = sorted({name for of_run in scores.values() for name in of_run})
    for result in batch.results():
        of_run = scores.get((result["number"], result["repeat"]), {})
        row = _Row(result["number"], result["outcome"], _read_values(result, names, of_run))
        runs.setdefault(result["row"], []).append(row)
    return _Side(
        (_PASSED, *(f"score {name}" for name in names), *_OF_THE_RUN),
        {row: rows[0] if len(rows) == 1 else _average(rows) for row, rows in runs.items()},
    )


def _average(runs: Sequence[_Row]) -> _Row:
    values: list[float | None] = []
    for of_runs in zip(*(run.values for run in runs), strict=True):
        known = [value for value in of_runs if value is not None]
        values.append(sum(known) / len(known) if known else None)
    passed = sum(run.outcome == Ending.OK.value for run in runs)
    return _Row(runs[0].number, f"{passed} of {len(runs)} passed", tuple(values))


def _read_values(result: Record, names: Sequence[str], scores: Mapping[str, Score]) -> _Values:
    attempts, passed = result["attempts"], read_passed(result)
    found = [scores.get(name) for name in names]
    numbers = [
        score.value
        if score and score.attempts == attempts and isinstance(score.value, (int, float))
        else None
        for score in found
    ]
    return (
        None if passed is None else float(passed),
        *numbers,
        read_dollars(result),
        (result["usage"] or {}).get("total_tokens"),
        read_seconds(result),
        result["steps"],
        len(result["tools"]),
    )


def _differences(
    mine: Sequence[str], theirs: Sequence[str], pairs: Sequence[tuple[_Row, _Row]]
) -> list[Difference]:
    """Every measure that some rows have in both batches."""
    first = dict(zip(mine, zip(*(row.values for row, _ in pairs), strict=True), strict=True))
    second = dict(zip(theirs, zip(*(row.values for _, row in pairs), strict=True), strict=True))
    differences: list[Difference] = []
    for name in filter(second.__contains__, mine):
        both = [
            (one, other)
            for one, other in zip(first[name], second[name], strict=True)
            if one is not None and other is not None
        ]
        if both:
            sides = list(zip(*both, strict=True))
            test = paired_test([*map(sub, sides[1], sides[0])], 1 if name == _PASSED else None)
            a, b = (math.fsum(side) / len(both) for side in sides)
            measured = (test.low, test.high, test.p, len(both), test.is_clear)
            differences.append(Difference(name, a, b, *measured))
    return differences


POWER = 0.8
"""The share of comparisons that find a difference of the size that rows were planned for."""

_UNKNOWN = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of rows with different outcomes to plan for if there are no results."""


class Sample(NamedTuple):
    """The rows for one assumption about how much the plans differ.

    Attributes:
        differing: The share of rows that pass with one plan only; for rows that run several times, the mean square of
            the differences of their shares.
        rows: The number of rows.
        cost: US dollars of both plans for these rows; None if unknown.
    """

    differing: float
    rows: int
    cost: float | None = None


class Planning(NamedTuple):
    """The rows that a comparison needs.

    Attributes:
        effect: The difference of pass rates to find.
        samples: One, or several for different assumptions if nothing is known.
        input_rows: The rows of the input of the batches; None without one.
        effect_of_input: The smallest difference that the rows of the input suffice for; infinite if there is none.
    """

    effect: float
    samples: Sequence[Sample]
    input_rows: int | None = None
    effect_of_input: float | None = None


def rows_needed(effect: float, differing: float) -> int:
    """Return the rows with which a difference of pass rates is found in four of five comparisons.

    Args:
        effect: The difference, above 0 and at most 1.
        differing: See `Sample`; taken as the effect if it is lower.
    """
    differing = max(differing, effect)
    alpha, beta = (NormalDist().inv_cdf(share) for share in ((1 + CONFIDENCE) / 2, POWER))
    spread = alpha * math.sqrt(differing) + beta * math.sqrt(differing - effect**2)
    # The last term is for the steps of an exact test.
    return math.ceil(spread**2 / effect**2 + 2 / effect)


def smallest_effect(rows: int, differing: float) -> float:
    """Return the smallest difference of pass rates for which a number of rows suffices; infinite if there is none."""
    low, high = 0.0, 1.0
    if rows_needed(high, differing) > rows:
        return math.inf
    while high - low > 1e-4:
        middle = (low + high) / 2
        if rows_needed(middle, differing) <= rows:
            high = middle
        else:
            low = middle
    return high


def plan_rows(effect: float, a: BatchFolder | None, b: BatchFolder | None) -> Planning:
    """Plan a comparison.

    Args:
        effect: The difference of pass rates to find.
        a: A batch of the first plan, if there is one.
        b: A batch of the second plan over the same input, if there is one.

    Raises:
        ConfigError: A batch has no results, or they have different inputs.
        SessionError: The results cannot be read.
    """
    if a is None:
        return Planning(
            effect, [Sample(q, rows_needed(effect, q)) for q in _UNKNOWN if q >= effect]
        )
    differing = _estimate(a, effect) if b is None else compare(a, b).differing
    rows, each = rows_needed(effect, differing), [_cost_of_row(batch) for batch in (a, b or a)]
    known = [cost for cost in each if cost is not None]
    cost = rows * sum(known) if len(known) == len(each) else None
    inputs = int(a.facts["rows"])
    sample = Sample(differing, rows, cost)
    return Planning(effect, [sample], inputs, smallest_effect(inputs, differing))


def _estimate(batch: BatchFolder, effect: float) -> float:
    """Estimate how much another plan with about this pass rate would differ.

    From runs of the same row, if there are several; otherwise as if which rows pass had nothing to do with the other
    plan's, which is more than plans mostly differ.
    """
    runs: dict[str, list[bool]] = {}
    for result in batch.results():
        if (has_passed := read_passed(result)) is not None:
            runs.setdefault(result["row"], []).append(has_passed)
    if not runs:
        raise ConfigError(f"no row has passed or failed in {batch.shown}")
    several = [passed for passed in runs.values() if len(passed) > 1]
    if several:
        chances = [
            2 * sum(row) * (len(row) - sum(row)) / len(row) ** 2 / (len(row) - 1) for row in several
        ]
        return math.fsum(chances) / len(chances) + effect**2
    # As if one more row had passed and one had failed: few rows do not show that all pass.
    rate = (sum(passed for [passed] in runs.values()) + 1) / (len(runs) + 2)
    other = rate - effect if rate > 0.5 else rate + effect
    return rate * (1 - other) + other * (1 - rate)


def _cost_of_row(batch: BatchFolder) -> float | None:
    """US dollars for a row with all of its runs; None if unknown."""
    costs = [read_dollars(result) for result in batch.results()]
    known = [cost for cost in costs if cost is not None]
    return batch.repeat * sum(known) / len(known) if known else None


def parse_points(text: str, option: str) -> float:
    """Return percentage points, `5%` or `5`, as a share.

    Raises:
        UsageError: It is not a number above 0, at most 100.
    """
    try:
        points = float(text.removesuffix("%"))
    except ValueError:
        points = 0.0
    if not 0 < points <= 100:
        raise UsageError(f"{option}: expected percentage points above 0, such as 5%, got {text!r}")
    return points / 100
