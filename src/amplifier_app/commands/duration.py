"""Durations on the command line."""

from __future__ import annotations

import re

from amplifier_app.base.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

_LONGEST = 5200 * _UNITS["w"]
"""A hundred years: dates do not reach much further back."""


def parse_duration(text: str, option: str = "--timeout") -> float:
    """Seconds from ``90``, ``90s``, ``5m``, ``1h``, ``30d`` or ``2w``.

    Args:
        text: The duration.
        option: The option it was given for.

    Raises:
        UsageError: It is none of these, zero, or more than a hundred years.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{option}: invalid duration {text!r}", hint="Write 90, 90s, 5m, 1h or 30d."
        )
    return seconds
