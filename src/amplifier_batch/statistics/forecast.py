"""The cost of a whole batch and the time until its end, as its first rows foretell them."""

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
    """The end of a batch.

    Attributes:
        cost: The most likely cost of all rows, in US dollars; None without enough rows with a price.
        low: The lower end of the interval that has it in 95 of 100 batches, if the rows are in no order.
        high: The upper end.
        seconds_left: Seconds until the last row has ended; None if they cannot be known.
    """

    cost: float | None
    low: float | None
    high: float | None
    seconds_left: float | None

    @property
    def text(self) -> str:
        """`$312.00 ($280.00 to $350.00), about 4.0 h left`, as far as it is known."""
        parts: list[str] = []
        if self.cost is not None:
            parts.append(self.cost_text)
        if self.seconds_left is not None:
            parts.append(f"about {describe_time_left(self.seconds_left)} left")
        return ", ".join(parts)

    @property
    def cost_text(self) -> str:
        """`$312.00 ($280.00 to $350.00)`."""
        cost, low, high = (describe.cost(Decimal(str(amount))) for amount in self[:3])
        return f"{cost} ({low} to {high})"


def describe_time_left(seconds: float) -> str:
    """`80 s`, `12 min`, `4.0 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def make_forecast(counts: Counts, runs: int, workers: int | None) -> Forecast | None:
    """Return the forecast of a batch; None before enough rows have ended, and after the last row.

    Args:
        counts: Its progress.
        runs: How many rows it has, each as often as it is repeated.
        workers: How many rows run at once; None if that does not decide how long they take, as at batch prices.
    """
    cost = _forecast_cost(counts, runs)
    left, seconds = runs - counts.ended, None
    if workers is not None and counts.timed >= ROWS_NEEDED and left > 0:
        seconds = counts.seconds / counts.timed * left / min(workers, left)
    if cost is None and seconds is None:
        return None
    return Forecast(*(cost or (None, None, None)), seconds)


def _forecast_cost(counts: Counts, runs: int) -> tuple[float, float, float] | None:
    """The cost of all rows, and the ends of its interval."""
    ended, left = counts.priced, runs - counts.ended
    if ended < ROWS_NEEDED or left <= 0 or not counts.ended_cost:
        return None
    # Rows that were stopped have cost something, too, and will be continued.
    spent, mean = float(counts.cost), counts.ended_cost / ended
    variance = max(0.0, (counts.squares - ended * mean**2) / (ended - 1))
    # Of the sum of the rows that are left, and of the mean that they are estimated with.
    error = math.sqrt(variance * left * (1 + left / ended)) * student_quantile(ended - 1)
    cost = spent + left * mean
    return cost, max(spent, cost - error), cost + error
