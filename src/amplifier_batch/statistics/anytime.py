"""An interval of a mean difference that holds at every moment, so that a comparison may stop as soon as it is decided.

A gambler bets on each row that the difference is above, or below, a supposed mean. If that is the true mean, no strategy makes
money: the chance that the capital ever grows 20-fold is at most 5 % (Ville's inequality), whenever one looks and for
whatever reason one stops. Means at which it has not grown so much are in the interval (Waudby-Smith and Ramdas 2024).
The capital is spread over bets of all sizes at once, most of it over those that suit differences of 10 to 30 points.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter

from amplifier_support.named_tuple import NamedTuple

CONFIDENCE = 0.95
"""At most 5 of 100 comparisons of equal plans ever call them different."""

DECIDED = "decided"
"""The fact `until` of batches that stop as soon as one of them is clearly better."""

_BETS = [number / 20.5 for number in range(-20, 21)]
"""Shares of the capital to bet; those below 0 on a lower mean."""

_WEIGHTS = [(1 - bet * bet) ** 1.5 for bet in _BETS]
_LOG_WEIGHTS = [math.log(weight / math.fsum(_WEIGHTS)) for weight in _WEIGHTS]
_LIMIT = -math.log(1 - CONFIDENCE)
_STEPS = 20
_LEAST = 1e-9


def place(row_id: str) -> bytes:
    """Return the place of a row in a comparison, to sort by; it does not depend on the results."""
    return hashlib.sha256(row_id.encode("utf-8", "surrogatepass")).digest()


class Verdict(NamedTuple):
    """The evidence of the rows so far.

    Attributes:
        mean: The mean difference.
        low: The lower end of its interval.
        high: The upper end.
        p: The chance of so much evidence against equal plans at any moment, if they are equal; at most.
        rows: The number of rows.
        is_clear: True if the interval does not contain 0.
    """

    mean: float
    low: float
    high: float
    p: float
    rows: int
    is_clear: bool


class Anytime:
    """The differences of rows that come one after the other, each from -1 to 1.

    Rows must come in an order that does not depend on their results.
    """

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()
        self._rows = 0

    def add(self, difference: float) -> None:
        """Add a row."""
        self._counts[difference] += 1
        self._rows += 1

    @property
    def is_decided(self) -> bool:
        """True if the plans are not equal, as far as the confidence goes."""
        return self._log_capital(0.0) >= _LIMIT

    def verdict(self) -> Verdict:
        """Return what the rows show; there must be one."""
        mean = math.fsum(value * count for value, count in self._counts.items()) / self._rows
        evidence = self._log_capital(0.0)
        is_clear = evidence >= _LIMIT
        low, high = self._end(mean, -1.0), self._end(mean, 1.0)
        if is_clear and low <= 0 <= high:
            # The ends are approximations from the outside.
            low, high = (0.0, high) if mean > 0 else (low, 0.0)
        return Verdict(mean, low, high, min(1.0, math.exp(-evidence)), self._rows, is_clear)

    def _log_capital(self, mean: float) -> float:
        """Return the logarithm of the capital, which begins with 1, after bets against a mean."""
        # The largest bets lose all with a difference of 1, or of -1.
        above, below = max(1 + mean, _LEAST), max(1 - mean, _LEAST)
        logs = [
            weight
            + sum(
                count * math.log1p(bet * (value - mean) / (above if bet > 0 else below))
                for value, count in self._counts.items()
            )
            for bet, weight in zip(_BETS, _LOG_WEIGHTS, strict=True)
        ]
        top = max(logs)
        return top + math.log(math.fsum(math.exp(log - top) for log in logs))

    def _end(self, inside: float, outside: float) -> float:
        """Return the end of the interval between its middle and a limit."""
        if self._log_capital(outside) < _LIMIT:
            return outside
        for _ in range(_STEPS):
            middle = (inside + outside) / 2
            if self._log_capital(middle) < _LIMIT:
                inside = middle
            else:
                outside = middle
        return outside
