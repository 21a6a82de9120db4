"""Durations on the command line."""

import pytest

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.option import parse_duration


def test_a_duration_has_a_unit_and_ends_before_dates_do() -> None:
    assert [*map(parse_duration, ("90", "1.5m", "1h", "2w", "5200w"))] == [
        *(90.0, 90.0, 3600.0, 1_209_600.0, 3_144_960_000.0)
    ]
    for wrong in ("", "0", "-1", "1y", "inf", "5201w", "9" * 20 + "d", "9" * 400):
        with pytest.raises(UsageError, match="--older: invalid duration"):
            parse_duration(wrong, "--older")
