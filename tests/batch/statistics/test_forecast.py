"""What a whole batch will cost, from its first rows."""

from __future__ import annotations

import random

import pytest

from amplifier_batch.record.progress import Counts
from amplifier_batch.statistics.forecast import forecast_cost


def counts_of(costs: list[float | None]) -> Counts:
    counts = Counts()
    for number, cost in enumerate(costs):
        counts.add({"event": "claimed", "id": str(number), "attempt": 1})
        record = {"event": "ended", "id": str(number), "outcome": "ok", "size": 1, "cost": cost}
        counts.add({**record, "cost": None if cost is None else str(cost)})
    return counts


@pytest.mark.parametrize(
    ("costs", "runs"),
    [([0.1] * 19, 100), ([0.1] * 40, 40), ([0.0] * 40, 100), ([None] * 40, 100)],
    ids=["too few", "all ended", "free", "without a price"],
)
def test_without_enough_priced_rows_there_is_no_forecast(
    costs: list[float | None], runs: int
) -> None:
    assert forecast_cost(counts_of(costs), runs) is None


def test_equal_costs_leave_nothing_open() -> None:
    forecast = forecast_cost(counts_of([0.25] * 20), 1000)
    assert forecast == pytest.approx((250, 250, 250))


def test_it_survives_being_saved() -> None:
    counts = counts_of([0.1, 0.3] * 20)
    assert forecast_cost(Counts.from_dict(counts.as_dict()), 100) == forecast_cost(counts, 100)


@pytest.mark.parametrize(("ended", "runs"), [(20, 40), (20, 1000), (200, 1000)])
def test_the_interval_has_the_cost_of_nearly_all_batches(ended: int, runs: int) -> None:
    chance = random.Random(ended + runs)
    inside = 0
    for _ in range(500):
        costs = [chance.gammavariate(4, 0.01) for _ in range(runs)]
        forecast = forecast_cost(counts_of([*costs[:ended]]), runs)
        assert forecast is not None
        inside += forecast.low <= sum(costs) <= forecast.high
    assert 0.92 <= inside / 500 <= 0.99
