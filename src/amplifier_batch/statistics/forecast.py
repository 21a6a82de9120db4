"""The cost of a whole batch, as its first rows foretell it."""

from __future__ import annotations

import math
from decimal import Decimal

from amplifier_app.runtime import describe
from amplifier_batch.record.progress import Counts
from amplifier_batch.statistics.score_means import student_quantile
from amplifier_support.named_tuple import NamedTuple

ROWS_NEEDED = 20
"""The rows that must have ended; the interval of fewer is too wide to be of use."""


class Forecast(NamedTuple):
    """The cost of a batch at its end, in US dollars.

    Attributes:
        cost: The most likely cost.
        low: The lower end of the interval that has it in 95 of 100 batches, if the rows are in no order.
        high: The upper end.
    """

    cost: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """`about $312 in all ($280 to $350)`."""
        cost, low, high = (describe.cost(Decimal(str(amount))) for amount in self)
        return f"about {cost} in all ({low} to {high})"


def forecast_cost(counts: Counts, runs: int) -> Forecast | None:
    """Return the forecast of a batch; None before enough rows with a price have ended, and after the last row.

    Args:
        counts: Its progress.
        runs: How many rows it has, each as often as it is repeated.
    """
    ended, left = counts.priced, runs - counts.ended
    if ended < ROWS_NEEDED or left <= 0 or not counts.ended_cost:
        return None
    # Rows that were stopped have cost something, too, and will be continued.
    spent, mean = float(counts.cost), counts.ended_cost / ended
    variance = max(0.0, (counts.squares - ended * mean**2) / (ended - 1))
    # Of the sum of the rows that are left, and of the mean that they are estimated with.
    error = math.sqrt(variance * left * (1 + left / ended)) * student_quantile(ended - 1)
    cost = spent + left * mean
    return Forecast(cost, max(spent, cost - error), cost + error)
