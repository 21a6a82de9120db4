"""Times that `datetime` does not have."""

import math
import time
from datetime import UTC, datetime

import pytest

from amplifier_support import clock


@pytest.mark.parametrize("seconds", [3e11, 1e300, math.inf, -1e11, -1e300, -math.inf, math.nan])
def test_a_time_without_a_date_is_the_nearest_one(seconds: float) -> None:
    moment = clock.utc_time(seconds)
    assert moment.year == (9999 if seconds > 0 else 1)
    assert moment.astimezone().isoformat()


def test_a_clock_beyond_the_dates_gives_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            raise ValueError("year 11533 is out of range")

    assert abs(clock.utc_now() - datetime.now(UTC)).total_seconds() < 60
    monkeypatch.setattr(clock, "datetime", Broken)
    monkeypatch.setattr(time, "time", lambda: 3.018e11)
    assert clock.utc_now().year == 9999
