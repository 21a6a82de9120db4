"""Exact tests of paired differences, their intervals, and the rows that a comparison needs."""

import itertools
import math
import random

import pytest

from amplifier_batch.statistics.comparison import POWER, rows_needed, smallest_effect
from amplifier_batch.statistics.paired import CONFIDENCE, mcnemar, paired_test
from tests.batch.statistics.simulation import COMPARISONS, KINDS, SIZES, coverage
from tests.support.thorough import Scale


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(2, 16, 344 / 2**18), (0, 0, 1), (1, 0, 1), (0, 7, 2 / 128), (5, 5, 1), (9000, 10000, 4e-13)],
)
def test_rows_that_pass_or_fail_have_the_exact_p_of_mcnemar(
    better: int, worse: int, p: float
) -> None:
    assert mcnemar(better, worse) == pytest.approx(p, rel=0.2 if p < 1e-9 else 1e-4)
    assert mcnemar(worse, better) == mcnemar(better, worse)


def test_few_rows_have_the_p_of_all_changes_of_sign() -> None:
    differences = [0.5, 0.25, -0.125, 0.5, 0.75, 0.25, 1.5, -0.25]
    total = sum(differences)
    flipped = [
        sum(sign * value for sign, value in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    p = 2 * sum(value >= total for value in flipped) / len(flipped)
    assert paired_test(differences).p == pytest.approx(p)
    more = paired_test([*differences * 4]).p
    assert 0 < more < p


@pytest.mark.parametrize("rows", [300, 5003], ids=["each by itself", "in groups"])
def test_many_rows_have_about_the_p_of_the_normal_distribution(rows: int) -> None:
    draw = random.Random(3)
    differences = [draw.gauss(1.7 / math.sqrt(rows), 1) for _ in range(rows)]
    mean = sum(differences) / rows
    error = math.sqrt(sum((value - mean) ** 2 for value in differences) / (rows - 1) / rows)
    test = paired_test(differences)
    assert test.p == pytest.approx(math.erfc(abs(mean / error) / math.sqrt(2)), abs=0.02)
    assert test.low == pytest.approx(mean - 2.326 * error, abs=error / 4)
    assert test.high == pytest.approx(mean + 2.326 * error, abs=error / 4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, marks=[] if rows in (8, 400) else [pytest.mark.thorough])
        for rows in SIZES
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_contain_the_true_difference_in_95_of_100_comparisons(
    kind: str, rows: int, scale: Scale
) -> None:
    few = 15 if rows < 100 else 6
    comparisons = scale(few, COMPARISONS)
    missed = (1 - coverage(KINDS[kind], rows, comparisons)) * comparisons
    # A few comparisons show only that nothing is far off.
    assert missed <= scale(few // 5, 0.05 * COMPARISONS)


def test_an_interval_contains_0_unless_the_difference_is_clear(scale: Scale) -> None:
    sizes = scale((8, 20), (8, 20, 60))
    for rows, better, worse in itertools.product(sizes, range(9), range(5)):
        if better + worse <= rows:
            same = [0.0] * (rows - better - worse)
            test = paired_test([1.0] * better + [-1.0] * worse + same, 1)
            assert test.low is not None
            assert test.high is not None
            assert test.is_clear == (mcnemar(better, worse) <= 1 - CONFIDENCE)
            assert (test.low < 0 < test.high) or test.is_clear or test.low == 0 or test.high == 0
            assert not test.is_clear or not test.low < 0 < test.high


def test_rows_that_all_agree_leave_room_for_doubt() -> None:
    test = paired_test([0.0] * 20, 1)
    assert (test.p, test.is_clear) == (1, False)
    assert test.low is not None
    assert test.high is not None
    assert test.low == pytest.approx(-test.high, abs=0.02)
    assert 0.05 < test.high < 0.3


def test_too_few_rows_have_no_interval_or_one_that_says_nothing() -> None:
    assert paired_test([1.0, 1.0, 1.0], 1)[:2] == (-1, 1)
    assert paired_test([2.0, 3.0, 4.0])[:2] == (None, None)


@pytest.mark.parametrize(
    ("effect", "differing"), [(0.2, 0.44), (0.1, 0.3), (0.05, 0.1), (0.3, 0.3)]
)
def test_the_planned_rows_find_the_difference_in_80_of_100_comparisons(
    effect: float, differing: float, scale: Scale
) -> None:
    rows, comparisons = rows_needed(effect, differing), scale(300, 3000)
    draw, found = random.Random(11), 0
    for _ in range(comparisons):
        numbers = [draw.random() for _ in range(rows)]
        better = sum(number < (differing + effect) / 2 for number in numbers)
        worse = sum((differing + effect) / 2 <= number < differing for number in numbers)
        found += mcnemar(better, worse) <= 1 - CONFIDENCE
    assert found / comparisons >= POWER - scale(0.06, 0.01)
    assert smallest_effect(rows, differing) == pytest.approx(effect, abs=0.005)
    assert smallest_effect(3, differing) == math.inf
