"""The time, also of a clock that is set to a year that `datetime` does not have."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

# A day from the limits of `datetime`: in some time zones these are beyond them.
_FIRST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
_LAST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def utc_now() -> datetime:
    """Return the time in UTC, the first or last one that `datetime` has if the clock is beyond."""
    try:
        return datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        return utc_time(time.time())


def local_now() -> datetime:
    """Return the time of `utc_now` in the local time zone, without the zone."""
    return utc_now().astimezone().replace(tzinfo=None)


def utc_time(seconds: float) -> datetime:
    """Return a time in UTC, limited like `utc_now`.

    Args:
        seconds: The time in seconds since the epoch.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return _LAST if seconds > 0 else _FIRST
