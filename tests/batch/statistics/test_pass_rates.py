"""Pass rates of a batch and their intervals."""

import itertools
import random
from collections import Counter

import pytest

from amplifier_batch.statistics.pass_rates import compute_rates, wilson
from tests.support.thorough import Scale


@pytest.mark.parametrize(
    ("passed", "number", "interval"),
    # Of the table in Newcombe (1998), method 3.
    [(81, 263, (0.2553, 0.3662)), (15, 148, (0.0624, 0.1605)), (0, 20, (0.0, 0.1611))],
)
def test_single_runs_have_the_interval_of_wilson(
    passed: int, number: int, interval: tuple[float, float]
) -> None:
    (rate,) = compute_rates({(1, 1): passed, (1, 0): number - passed}, 1)
    assert (rate.low, rate.high) == pytest.approx(interval, abs=5e-5)
    assert (rate.k, rate.value, rate.rows) == (1, passed / number, number)


def test_pass_at_k_is_the_share_of_all_choices_of_k_runs_with_a_pass() -> None:
    rows = [[True, False, False, True, False], [False] * 5, [True] * 5, [False] * 4 + [True]]
    rates = compute_rates(Counter((5, sum(row)) for row in rows), 5)
    assert [rate.k for rate in rates] == [1, 2, 3, 4, 5]
    for rate in rates:
        choices = [list(itertools.combinations(row, rate.k)) for row in rows]
        shares = [sum(map(any, chosen)) / len(chosen) for chosen in choices]
        assert rate.value == pytest.approx(sum(shares) / len(shares))
        assert 0 <= rate.low <= rate.value <= rate.high <= 1


def test_rows_that_have_not_run_k_times_do_not_count_for_k() -> None:
    rates = compute_rates({(3, 3): 1, (2, 0): 1, (1, 1): 1}, 3)
    assert [(rate.k, rate.rows) for rate in rates] == [(1, 3), (2, 2), (3, 1)]
    assert compute_rates({}, 3) == []


def test_intervals_contain_the_rate_of_the_plan_about_as_often_as_they_claim(scale: Scale) -> None:
    draw, hits, batches = random.Random(7), 0, scale(80, 200)
    # Rows that differ: half of them pass in 9 of 10 runs, the others in 3 of 10.
    for _ in range(batches):
        chances = [draw.choice((0.9, 0.3)) for _ in range(60)]
        rows = Counter((4, sum(draw.random() < chance for _ in range(4))) for chance in chances)
        rate = compute_rates(rows, 4)[0]
        hits += rate.low <= 0.6 <= rate.high
    assert hits >= 0.88 * batches, hits


@pytest.mark.parametrize("number", [3, 5, 8])
def test_intervals_of_few_rows_are_as_wide_as_they_claim(number: int) -> None:
    draw, hits, batches = random.Random(number), 0, 150
    for _ in range(batches):
        chances = [draw.choice((0.9, 0.3)) for _ in range(number)]
        rows = Counter((5, sum(draw.random() < chance for _ in range(5))) for chance in chances)
        rate = compute_rates(rows, 5, [1])[0]
        assert rate.low <= rate.value <= rate.high
        hits += rate.low <= 0.6 <= rate.high
    assert hits >= 0.92 * batches, hits


def test_rows_that_all_agree_leave_room_for_doubt() -> None:
    (first, *_, last) = compute_rates({(3, 3): 10}, 3)
    assert (first.low, first.high) == (last.low, last.high) == wilson(1.0, 10)
    assert first.low < 0.75


def test_many_runs_are_shown_in_steps() -> None:
    rates = compute_rates({(60, 30): 5, (60, 0): 5}, 60)
    assert [rate.k for rate in rates] == [1, 2, 5, 10, 20, 50, 60]
