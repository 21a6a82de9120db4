"""Pass rates: the share of rows that pass, and pass@k of rows that run several times, with intervals."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import Cell, Counts
from amplifier_support.named_tuple import NamedTuple

CONFIDENCE = 0.95
_NORMAL_QUANTILE = 1.959964
"""Of a normal distribution: 95 % are within this many standard deviations of the mean."""

_RESAMPLES = 1000
_SEED = 0

Cells = Mapping[Cell, int]
"""Rows by how many of their runs have ended, and how many of those have passed."""


class PassRate(NamedTuple):
    """The chance that at least one of `k` runs of a row passes, over all rows with that many runs.

    Attributes:
        k: The number of runs; with 1 it is the share of runs that pass.
        value: The estimate, from 0 to 1.
        low: The lower end of its interval.
        high: The upper end.
        rows: How many rows it is computed from.
    """

    k: int
    value: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def pass_rates(folder: BatchFolder, counts: Counts) -> list[PassRate]:
    """The pass rates of a batch so far; none if no row has passed or failed.

    Args:
        folder: The batch.
        counts: Its progress.

    Raises:
        SessionError: The journal is damaged.
    """
    if folder.repeat > 1:
        known = counts.knows_cells
        cells = counts.cells if known else Counter(folder.progress().cells.values())
        return compute_rates(cells, folder.repeat)
    passed = counts.outcomes[Ending.OK.value]
    return compute_rates({(1, 1): passed, (1, 0): counts.decided - passed}, 1)


def compute_rates(cells: Cells, repeat: int, sizes: Sequence[int] | None = None) -> list[PassRate]:
    """The pass rates of rows that were run up to `repeat` times; all, or of these sizes of k.

    pass@k is the unbiased estimate 1 - C(n - c, k) / C(n, k) of a row with c passes in n runs, as the mean of
    the rows. Intervals are those of Wilson for single runs. Otherwise they are of a Bayesian bootstrap over
    rows: the weights of all rows with equal counts are drawn at once, so that it costs the same for any
    number of rows. Half a row that always passes, and half a row that never does, are added: without them, the intervals
    of few rows are too narrow.
    """
    rates: list[PassRate] = []
    weights = cache(_weights)
    for k in sizes or _sizes(repeat):
        enough = {counts: rows for counts, rows in cells.items() if counts[0] >= k and rows}
        if not enough:
            continue
        values = [_pass_at(k, *counts) for counts in enough]
        rows = tuple(enough.values())
        value = _mean(values, rows)
        if repeat > 1 and len(set(values)) > 1:
            low, high = _bootstrap([*values, 0.0, 1.0], weights((*rows, 0.5, 0.5)))
            low, high = min(low, value), max(high, value)
        else:
            low, high = wilson(value, sum(rows))
        rates.append(PassRate(k, value, low, high, sum(rows)))
    return rates


def wilson(share: float, number: int) -> tuple[float, float]:
    """The Wilson interval of a share observed in a number of independent trials."""
    z = _NORMAL_QUANTILE**2 / number
    middle = (share + z / 2) / (1 + z)
    half = math.sqrt(z * (share * (1 - share) + z / 4)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def rates_as_data(rates: Sequence[PassRate]) -> list[dict[str, Any]]:
    """The rates as JSON data."""
    return [rate._asdict() for rate in rates]


def rates_in_words(rates: Sequence[PassRate]) -> str:
    """The first and the last of them: `pass@1 60.0% (41.2% to 76.9%), pass@5 … (95% intervals)`."""
    text = ", ".join(f"pass@{rate.k} {rate}" for rate in (*rates[:1], *rates[1:][-1:]))
    return f"{text} ({CONFIDENCE:.0%} intervals)"


def _sizes(repeat: int) -> list[int]:
    """Each k up to 10; beyond that 1, 2, 5, 10, 20, 50 … and the number of runs."""
    if repeat <= 10:
        return list(range(1, repeat + 1))
    steps = (digit * 10**power for power in range(4) for digit in (1, 2, 5))
    return [*(k for k in steps if k < repeat), repeat]


def _pass_at(k: int, runs: int, passed: int) -> float:
    return 1 - math.comb(runs - passed, k) / math.comb(runs, k)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, values, map(float, weights))) / math.fsum(weights)


def _weights(rows: Sequence[float]) -> list[list[float]]:
    """Weights of the rows for each resample."""
    draw = random.Random(_SEED).gammavariate
    return [[draw(number, 1.0) for number in rows] for _ in range(_RESAMPLES)]


def _bootstrap(values: Sequence[float], weights: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The interval of a mean over rows that do not all have the same value."""
    means = sorted(_mean(values, weight) for weight in weights)
    cut = round(_RESAMPLES * (1 - CONFIDENCE) / 2)
    return means[cut], means[-cut - 1]
