"""Simulated comparisons with known differences.

    python -m tests.batch.statistics.simulation

prints how often intervals contain the true difference, with 2,000 comparisons of each size, and how many rows comparisons
save that stop as soon as they are decided.
"""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from amplifier_batch.statistics.anytime import Anytime
from amplifier_batch.statistics.paired import CONFIDENCE, paired_test

SIZES = (8, 10, 12, 15, 20, 30, 40, 60, 80, 120, 200, 400)
COMPARISONS = 2000


class Kind(NamedTuple):
    """A measure of two plans.

    Attributes:
        draw: Draws the difference of one row.
        mean: The true mean difference.
        bound: The largest difference that is possible.
    """

    draw: Callable[[random.Random], float]
    mean: float
    bound: float | None = None


def _passed(better: float, worse: float) -> Kind:
    def draw(source: random.Random) -> float:
        number = source.random()
        return 1.0 if number < better else -1.0 if number < better + worse else 0.0

    return Kind(draw, better - worse, 1)


def _score(source: random.Random) -> float:
    """The difference of two scores from 0 to 1, of which many are 1."""
    a, b = (min(1.0, max(0.0, source.gauss(mean, 0.3))) for mean in (0.75, 0.85))
    return b - a


KINDS: Mapping[str, Kind] = {
    "equal plans": _passed(0.1, 0.1),
    "20 points": _passed(0.32, 0.12),
    "rare": _passed(0.03, 0.0),
    # The mean of 200,000 draws, each from a seed of its own.
    "score": Kind(_score, 0.0751936),
    "cost": Kind(lambda source: source.lognormvariate(0, 1) - source.lognormvariate(0, 1), 0.0),
}


def coverage(kind: Kind, rows: int, comparisons: int) -> float:
    """Return the share of comparisons whose interval contains the true difference."""
    source = random.Random(rows)
    covered = 0
    for _ in range(comparisons):
        test = paired_test([kind.draw(source) for _ in range(rows)], kind.bound)
        assert test.low is not None
        assert test.high is not None
        covered += test.low <= kind.mean <= test.high
    return covered / comparisons


class Stopped(NamedTuple):
    """The end of a comparison that stops as soon as it is decided.

    Attributes:
        rows: How many rows it took.
        direction: The mean difference if it was decided; None if rows ran out.
        mean: The true mean difference.
    """

    rows: int
    direction: float | None
    mean: float

    @property
    def is_decided(self) -> bool:
        """True if one plan was called better."""
        return self.direction is not None

    @property
    def is_right(self) -> bool:
        """True if that plan is better."""
        return self.direction is not None and self.direction * self.mean > 0


def compare_until_decided(kind: str, rows: int, seed: int) -> Stopped:
    """Compare two plans on up to so many rows, looking after each."""
    source, anytime, mean = random.Random(seed), Anytime(), KINDS[kind].mean
    for number in range(1, rows + 1):
        difference = KINDS[kind].draw(source)
        anytime.add(difference)
        # A row without a difference adds no evidence.
        if difference and anytime.is_decided:
            return Stopped(number, anytime.verdict().mean, mean)
    return Stopped(rows, None, mean)


def main() -> None:
    """Print the coverage of each kind and size."""
    print(f"coverage of {CONFIDENCE:.0%} intervals in {COMPARISONS:,} comparisons")
    print("rows " + "".join(f"{name:>13}" for name in KINDS))
    for rows in SIZES:
        shares = (coverage(kind, rows, COMPARISONS) for kind in KINDS.values())
        print(f"{rows:4} " + "".join(f"{share:13.1%}" for share in shares), flush=True)
    print(f"\nuntil decided, in {COMPARISONS:,} comparisons")
    print("                     rows    decided    rows that ran")
    for kind, rows in (
        ("equal plans", 200),
        ("equal plans", 1000),
        ("20 points", 200),
        ("20 points", 400),
    ):
        stopped = [compare_until_decided(kind, rows, seed) for seed in range(COMPARISONS)]
        decided = sum(one.is_decided for one in stopped) / COMPARISONS
        share = sum(one.rows for one in stopped) / COMPARISONS / rows
        print(f"{kind:20} {rows:5} {decided:10.1%} {share:16.1%}", flush=True)


if __name__ == "__main__":
    main()
