"""Tests at the full scale of the promises: `pytest -m thorough`; registered by `tests/conftest.py`.

The default run leaves out tests marked `thorough`, unless it measures (--benchmark-enable). A test that takes the fixture `scale` is in both runs:

    def test_records_survive_kills(scale):
        for seed in range(scale(5, 200)):  # 5 kills by default, 200 with -m thorough
            ...

Of many equal cases, the default run has one in a few: `@pytest.mark.parametrize("case", one_in(4, CASES))`.

A thorough run also has every property test (`@given`), with the profile `thorough` of hypothesis
unless --hypothesis-profile names another one, and gives each of its tests up to 10 minutes.
"""

import re
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, cast

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

_TIME_LIMIT_S = 600
_FULL_SCALE = pytest.StashKey[bool]()

_T = TypeVar("_T")

# No limits on time: on a busy machine they say nothing about the code.
_UNLIMITED: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=25, **_UNLIMITED)
hypothesis.settings.register_profile("thorough", max_examples=200, **_UNLIMITED)
hypothesis.settings.load_profile("quick")


class Scale(Protocol):
    def __call__(self, small: _T, full: _T) -> _T: ...


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> Scale:
    """`scale(small, full)`: `full` in a thorough run, otherwise `small`."""
    full_scale = pytestconfig.stash[_FULL_SCALE]
    return lambda small, full: full if full_scale else small


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test, of which a default run has the first of each `step`.

    A case with several parameters is a tuple; one that is itself a tuple has to be in another one.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.thorough] if number % step else [],
        )
        for number, case in enumerate(cases)
    ]


def pytest_configure(config: pytest.Config) -> None:
    expression = cast("str", config.getoption("markexpr"))
    thorough = re.search(r"(?<!not )\bthorough\b", expression) is not None
    config.stash[_FULL_SCALE] = thorough
    profile = config.getoption("--hypothesis-profile")
    if thorough and profile is None:
        hypothesis.settings.load_profile("thorough")
    elif profile is None:
        # It reads all source code for constants to try, in each worker. A few examples hardly use them.
        own = cast("Any", providers)
        own._get_local_constants = lambda: own._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests in a default run; in a thorough run, mark all that belong to it.

    First, because pytest applies -m in a hook of the same name.
    """
    if config.stash[_FULL_SCALE]:
        for item in items:
            if _has_full_scale(item):
                item.add_marker(pytest.mark.thorough)
                if item.get_closest_marker("timeout") is None:
                    item.add_marker(pytest.mark.timeout(_TIME_LIMIT_S))
        return
    if config.getoption("benchmark_enable", False):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def _has_full_scale(item: pytest.Item) -> bool:
    return (
        "scale" in getattr(item, "fixturenames", ())
        or item.get_closest_marker("thorough") is not None
        or hypothesis.is_hypothesis_test(getattr(item, "obj", None))
    )
