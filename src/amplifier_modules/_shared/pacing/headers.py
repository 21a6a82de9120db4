"""What a service reports about its rate limits, from the headers of an answer.

    anthropic-ratelimit-requests-limit, -remaining, -reset     and the same for input-tokens or tokens
    x-ratelimit-limit-requests, -remaining-requests, -reset-requests     and the same for tokens

A reset is a time (`2026-01-01T00:00:05Z`), a duration (`1m2.5s`, `120ms`) or a number of seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

DEFAULT_WINDOW = 60.0

_DIMENSIONS: Mapping[str, tuple[str, ...]] = {
    "requests": ("anthropic-ratelimit-requests-{}", "x-ratelimit-{}-requests"),
    "tokens": (
        "anthropic-ratelimit-input-tokens-{}",
        "anthropic-ratelimit-tokens-{}",
        "x-ratelimit-{}-tokens",
    ),
}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)

_SHORTEST_WINDOW, _LONGEST_WINDOW = 0.01, 86400.0
_SMALLEST, _LARGEST = 1.0, 1e12
"""Limits that are believed."""

_TIME_PRECISION = 1.0
"""Error of times in whole seconds, in seconds."""


class Reported(NamedTuple):
    """What is left of a limit.

    Attributes:
        limit: The size of the limit.
        remaining: How much is left.
        window: Seconds in which the whole limit comes back if it comes back evenly, inferred from the reset; None if
            that cannot be inferred.
        error: The error of `window`, as a share of it.
    """

    limit: float
    remaining: float
    window: float | None
    error: float = 0.0

    @property
    def used(self) -> float:
        """The used part of the limit."""
        return max(0.0, self.limit - self.remaining)


def reported_limits(headers: Mapping[str, str], now: float) -> dict[str, Reported]:
    """The limits of `requests` and `tokens` that an answer reports.

    Args:
        headers: The headers, looked up in lower case.
        now: Seconds since the epoch.
    """
    found: dict[str, Reported] = {}
    for dimension, names in _DIMENSIONS.items():
        for name in names:
            limit, remaining = (_number(headers.get(name.format(one))) for one in _COUNTS)
            if limit is None or remaining is None:
                continue
            if _SMALLEST <= limit <= _LARGEST:
                window = _window(limit, remaining, headers.get(name.format("reset")), headers, now)
                found[dimension] = Reported(limit, remaining, *window)
                break
    return found


_COUNTS = ("limit", "remaining")


def _window(
    limit: float, remaining: float, reset: str | None, headers: Mapping[str, str], now: float
) -> tuple[float | None, float]:
    """Seconds in which a limit comes back, if the used part comes back evenly until the reset, and their error."""
    used = limit - remaining
    if reset is None or used <= 0:
        return None, 0.0
    left, error = _seconds(reset), 0.0
    if left is None:
        is_exact = "." in reset
        left = _seconds_until(reset, None if is_exact else headers.get("date"), now)
        error = 0.0 if is_exact else _TIME_PRECISION
    if left is None or left <= 0:
        return None, 0.0
    return max(_SHORTEST_WINDOW, min(left * limit / used, _LONGEST_WINDOW)), error / left


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _seconds(text: str) -> float | None:
    number = _number(text)
    if number is not None or not text:
        return number
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    values = [_number(one) or 0.0 for one in found.groups()]
    return sum(value * unit for value, unit in zip(values, _UNITS, strict=True))


def _seconds_until(text: str, date: str | None, now: float) -> float | None:
    """The time until a moment by the clock of the service, if the answer has it."""
    try:
        moment = datetime.fromisoformat(text)
        seen = now if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
    return None if moment.tzinfo is None else moment.timestamp() - seen
