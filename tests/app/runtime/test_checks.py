"""The checks of a plan."""

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.runtime.checks import load_checks


def test_a_time_limit_may_come_from_a_variable() -> None:
    (check,) = load_checks({"checks": [{"run": "true", "timeout": "1.5"}]}, ())
    assert check.seconds == 1.5


@pytest.mark.parametrize("limit", ["", "soon", "nan", "inf", "0", "-1", "1e999"])
def test_a_time_limit_that_is_no_number_is_an_error_of_the_plan(limit: str) -> None:
    with pytest.raises(ConfigError, match="the timeout of check 'lint' must be a number"):
        load_checks({"checks": [{"run": "true", "name": "lint", "timeout": limit}]}, ())
