"""The rows that a comparison needs to find a difference of pass rates, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.results import read_dollars
from amplifier_batch.statistics.comparison import compare
from amplifier_batch.statistics.paired import CONFIDENCE
from amplifier_support.named_tuple import NamedTuple

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
        runs.setdefault(result["row"], []).append(result["outcome"] == Ending.OK.value)
    if not runs:
        raise ConfigError(f"no row has ended in {batch.shown}")
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
