"""Two batches are compared row by row, and chance is not called a difference."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.results import result_line
from amplifier_batch.statistics.comparison import Comparison, compare, plan_rows
from tests.support.thorough import Scale


class _Batch(BatchFolder):
    """A batch whose results are in memory; only comparison reads it."""

    def __init__(self, outcomes: Sequence[bool | None], **facts: Any) -> None:
        self.path, self.shown = Path("batch"), "batch"
        self.facts = {"input_digest": "i", **facts}
        self._outcomes = outcomes

    def results(self) -> Any:
        for number, passed in enumerate(self._outcomes, 1):
            outcome = {True: "ok", False: "check_failed", None: "waiting"}[passed]
            numbers = {"duration_ms": 1000 + number, "steps": 2, "tools": [], "cost": {"usd": 0.5}}
            usage = {"total_tokens": 100}
            yield result_line(
                f"r{number}", number, 1, {"outcome": outcome, "usage": usage, **numbers}
            )


class _Repeated(_Batch):
    """Each row runs three times."""

    def results(self) -> Any:
        for result in super().results():
            for repeat in (1, 2, 3):
                yield {**result, "repeat": repeat, "steps": repeat}


def test_rows_that_ran_several_times_are_compared_by_their_means() -> None:
    found = compare(_Batch([True, False]), _Repeated([True, True]))
    assert found.flips == [(2, "r2", "check_failed", "3 of 3 passed")]
    steps = {one.name: (one.b, one.rows) for one in found.measures}["steps"]
    assert steps == (2, 2)


def drawn(seed: int, rate: float, rows: int = 200) -> _Batch:
    draw = random.Random(seed)
    return _Batch([draw.random() < rate for _ in range(rows)])


def test_a_difference_of_20_points_is_found_and_equal_plans_are_equal(scale: Scale) -> None:
    seeds = range(scale(4, 100))
    found = [compare(drawn(seed, 0.8), drawn(seed + 1000, 0.6)).verdict for seed in seeds]
    assert found.count("worse") >= 0.95 * len(seeds)
    assert "better" not in found
    equal = [compare(drawn(seed, 0.7), drawn(seed + 1000, 0.7)).verdict for seed in seeds]
    assert equal.count("undecided") >= 0.95 * len(seeds)


def test_rows_that_flipped_are_listed_in_order() -> None:
    found: Comparison = compare(_Batch([True, False, True]), _Batch([True, True, False]))
    assert found.flips == [(2, "r2", "check_failed", "ok"), (3, "r3", "ok", "check_failed")]
    assert found.verdict == "undecided"
    tokens = {one.name: one for one in found.measures}["tokens"]
    assert (tokens.a, tokens.b, tokens.p, tokens.is_clear) == (100, 100, 1, False)


def test_the_tolerance_is_in_points_and_must_be_clearly_exceeded() -> None:
    found = compare(_Batch([True] * 200), _Batch([True] * 150 + [False] * 50))
    assert found.verdict == "worse"
    assert found.is_worse_by(0.1)
    assert not found.is_worse_by(0.3)


def test_rows_that_wait_do_not_count_as_failed_in_the_number_of_rows_needed() -> None:
    outcomes = [True] * 6 + [False] * 2
    decided, waiting = _Batch(outcomes, rows=10), _Batch([*outcomes, None, None], rows=10)
    assert plan_rows(0.05, waiting, None).samples == plan_rows(0.05, decided, None).samples


def test_rows_of_one_batch_only_are_counted_and_not_compared() -> None:
    found = compare(_Batch([True] * 5), _Batch([True] * 3))
    assert (found.unpaired, found.measures[0].rows) == (2, 3)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_Batch([True], input_digest="j"), "have different inputs"),
        (_Batch([]), "no row has ended in both"),
    ],
)
def test_batches_that_cannot_be_compared_are_refused(other: _Batch, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(_Batch([True]), other)
