"""Intervals that hold at any time, and the rows they save."""

import random

import pytest

from amplifier_batch.statistics.anytime import Anytime
from tests.batch.statistics.simulation import KINDS, compare_until_decided
from tests.support.thorough import Scale


@pytest.mark.timeout(900)
def test_equal_plans_are_called_different_in_at_most_5_of_100_comparisons(scale: Scale) -> None:
    comparisons = scale(60, 2000)
    stopped = [compare_until_decided("equal plans", 200, seed) for seed in range(comparisons)]
    assert sum(one.is_decided for one in stopped) <= 0.05 * comparisons


@pytest.mark.timeout(900)
def test_half_of_the_rows_are_saved_at_a_difference_of_20_points(scale: Scale) -> None:
    comparisons = scale(30, 2000)
    stopped = [compare_until_decided("20 points", 200, seed) for seed in range(comparisons)]
    assert sum(one.rows for one in stopped) <= 0.5 * 200 * comparisons
    assert sum(one.is_decided for one in stopped) >= 0.9 * comparisons
    assert all(one.is_right for one in stopped if one.is_decided)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["equal plans", "20 points", "rare"])
def test_intervals_contain_the_true_difference_at_all_times(kind: str, scale: Scale) -> None:
    comparisons, covered = scale(8, 1000), 0
    for seed in range(comparisons):
        draw, anytime, is_right = random.Random(seed), Anytime(), True
        for row in range(100):
            anytime.add(KINDS[kind].draw(draw))
            if row % 10 == 9:
                found = anytime.verdict()
                is_right &= found.low <= KINDS[kind].mean <= found.high
        covered += is_right
    assert covered >= (0.95 - scale(0.1, 0.0)) * comparisons


def test_few_rows_decide_nothing_and_many_equal_ones_everything() -> None:
    anytime = Anytime()
    anytime.add(1.0)
    first = anytime.verdict()
    assert (first.mean, first.high, first.is_clear) == (1.0, 1.0, False)
    assert first.low < 0 < first.p
    for _ in range(20):
        anytime.add(1.0)
    last = anytime.verdict()
    assert last.is_clear
    assert 0.3 < last.low < last.high == 1
    assert last.p < 0.001


def test_rows_that_run_several_times_count_by_their_shares() -> None:
    anytime = Anytime()
    for number in range(60):
        anytime.add((0.5, 0.25, -0.25)[number % 3])
    found = anytime.verdict()
    assert found.mean == pytest.approx(1 / 6)
    assert found.low < found.mean < found.high
