"""Exact tests of paired differences, and intervals that agree with them.

Tests are exact under the hypothesis that both plans are the same: exchanging the results of a row then changes only the
sign of its difference. McNemar's test is this test for rows that pass or fail; other measures try sign changes at random, or
all of them if there are few.

Intervals invert the test (Hartigan 1969): the means of random subsets of the differences cut the line into intervals that
contain the true mean equally often. Two rows are added, with the largest difference in each direction: rows that all agree
still leave room for doubt, and intervals of pass rates, costs and other skewed measures cover what they claim.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import compress

from amplifier_support.named_tuple import NamedTuple

CONFIDENCE = 0.98
"""Two equal plans are called different in at most 2 of 100 comparisons."""

_SAMPLES = 2000
_SEED = 0
_MAX_ENUMERATED = 9
"""Rows up to which all subsets are used."""

_MAX_GROUPS = 2000
"""Rows up to which each is chosen by itself. More rows are chosen in as many groups: these subsets are closed under their
symmetric differences, too, so that the test stays exact."""

_MIN_ROWS = 8
"""Rows below which a measure without a bound has no interval."""

_ODD = bytes(number & 1 for number in range(256))


class PairedTest(NamedTuple):
    """The test of the mean difference of some rows.

    Attributes:
        low: The lower end of the interval of the mean difference; None if there are too few rows for one.
        high: The upper end.
        p: The chance of a mean difference as large as this one, in either direction, if the plans are the same.
    """

    low: float | None
    high: float | None
    p: float

    @property
    def is_clear(self) -> bool:
        """True if the difference is more than chance."""
        return self.p <= 1 - CONFIDENCE


def paired_test(differences: Sequence[float], bound: float | None = None) -> PairedTest:
    """Test the differences of rows; there must be one.

    Args:
        differences: The difference of each row.
        bound: The largest difference that is possible in each direction; None if there is no limit.
    """
    most = max(map(abs, differences)) if bound is None else bound
    tiny = 1e-9 * math.fsum(map(abs, differences))
    means: list[float] = []
    below = above = number = 0
    groups = min(len(differences), _MAX_GROUPS)
    sums = [math.fsum(differences[group::groups]) for group in range(groups)]
    # The first groups have one row more.
    size_of_group, larger = divmod(len(differences), groups)
    for chosen, low, high in _subsets(groups):
        total = sum(compress(sums, chosen))
        count = size_of_group * chosen.count(1) + chosen[:larger].count(1)
        below += total <= tiny
        above += total >= -tiny
        number += 1
        if size := count + low + high:
            means.append((total + most * (high - low)) / size)
    p = min(1.0, 2 * min(below, above) / number)
    if bound == 1 and all(value in (-1, 0, 1) for value in differences):
        p = mcnemar(
            sum(value > 0 for value in differences), sum(value < 0 for value in differences)
        )
    means.sort()
    cut = math.floor((len(means) + 1) * (1 - CONFIDENCE) / 2)
    if bound is None and len(differences) < _MIN_ROWS:
        return PairedTest(None, None, p)
    if not cut:
        return PairedTest(-most, most, p)
    return _agreeing(PairedTest(means[cut - 1], means[-cut], p), math.fsum(differences))


def _subsets(rows: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield subsets of the rows, as a byte for each, and of the two rows that are added."""
    if rows <= _MAX_ENUMERATED:
        for bits in range(2 ** (rows + 2)):
            yield bytes(bits >> row & 1 for row in range(rows)), bits >> rows & 1, bits >> rows + 1
        return
    draw = random.Random(_SEED)
    # No row at all: the differences as they are, which the test counts.
    yield bytes(rows), 0, 0
    for _ in range(_SAMPLES):
        bits = draw.getrandbits(2)
        yield draw.randbytes(rows).translate(_ODD), bits & 1, bits >> 1


def _agreeing(test: PairedTest, total: float) -> PairedTest:
    """The interval, with an end at 0 if it contains 0 and the difference is clear, or the other way round."""
    assert test.low is not None
    assert test.high is not None
    if not test.is_clear:
        return test._replace(low=min(test.low, 0.0), high=max(test.high, 0.0))
    return (
        test._replace(low=max(test.low, 0.0))
        if total > 0
        else test._replace(high=min(test.high, 0.0))
    )


def mcnemar(better: int, worse: int) -> float:
    """Return the p-value of McNemar's exact test.

    Args:
        better: Rows that passed only with the second plan.
        worse: Rows that passed only with the first one.
    """
    rows = better + worse
    term = total = 1
    for number in range(min(better, worse)):
        term = term * (rows - number) // (number + 1)
        total += term
    return min(1.0, 2 * total / 2**rows)
