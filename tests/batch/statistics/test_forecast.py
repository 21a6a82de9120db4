"""What a whole batch will cost and how long it will take, from its first rows."""

import random

import pytest

from amplifier_batch.record.progress import Counts
from amplifier_batch.statistics.summary import make_forecast
from tests.support.thorough import Scale


def counts_of(costs: list[float | None], seconds: float | None = None) -> Counts:
    counts = Counts()
    for number, cost in enumerate(costs):
        counts.add({"event": "claimed", "id": str(number), "attempt": 1})
        record = {"event": "ended", "id": str(number), "outcome": "ok", "size": 1, "cost": cost}
        timed = {} if seconds is None else {"seconds": seconds}
        counts.add({**record, **timed, "cost": None if cost is None else str(cost)})
    return counts


@pytest.mark.parametrize(
    ("costs", "runs"),
    [([0.1] * 19, 100), ([0.1] * 40, 40), ([0.0] * 40, 100), ([None] * 40, 100)],
    ids=["too few", "all ended", "free", "without a price"],
)
def test_without_enough_priced_rows_there_is_no_forecast(
    costs: list[float | None], runs: int
) -> None:
    assert make_forecast(counts_of(costs), runs, 8) is None


def test_equal_costs_leave_nothing_open() -> None:
    forecast = make_forecast(counts_of([0.25] * 20), 1000, 8)
    assert forecast is not None
    assert forecast[:3] == pytest.approx((250, 250, 250))
    assert forecast.seconds_left is None  # a batch of an earlier version


def test_it_survives_being_saved() -> None:
    counts = counts_of([0.1, 0.3] * 20, seconds=2)
    read = Counts.from_dict(counts.as_dict())
    assert make_forecast(read, 100, 8) == make_forecast(counts, 100, 8)


@pytest.mark.parametrize(
    ("cost", "runs", "workers", "text"),
    [
        (None, 1020, 10, "about 12 min left"),
        (0.01, 40_020, 20, "$400.20 ($400.20 to $400.20), about 3.9 h left"),
        # The last rows have more workers than they need.
        (None, 24, 8, "about 7 s left"),
        (0.25, 120, None, "$30.00 ($30.00 to $30.00)"),
    ],
)
def test_the_time_left_is_that_of_the_rows_so_far_with_all_workers(
    cost: float | None, runs: int, workers: int | None, text: str
) -> None:
    forecast = make_forecast(counts_of([cost] * 20, seconds=7), runs, workers)
    assert forecast is not None
    assert forecast.text == text


@pytest.mark.parametrize(
    ("ended", "runs"), [(20, 40), (20, 1000), pytest.param(200, 1000, marks=pytest.mark.thorough)]
)
def test_the_interval_has_the_cost_of_nearly_all_batches(
    ended: int, runs: int, scale: Scale
) -> None:
    chance = random.Random(ended + runs)
    inside, batches = 0, scale(200, 500)
    for _ in range(batches):
        costs = [chance.gammavariate(4, 0.01) for _ in range(runs)]
        forecast = make_forecast(counts_of([*costs[:ended]]), runs, None)
        assert forecast is not None
        assert forecast.low is not None
        assert forecast.high is not None
        inside += forecast.low <= sum(costs) <= forecast.high
    assert 0.92 <= inside / batches <= 0.99
