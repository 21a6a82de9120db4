"""pytest plugin: `pytest --amplifier` also collects tests of plans, in files named `*.test.yaml`.

pytest loads it in every environment that has Amplifier installed. Without the option it does nothing and
imports no other part of the program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_OPTION = "--amplifier"
_SUFFIXES = (".test.yaml", ".test.yml")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option."""
    group = parser.getgroup("amplifier")
    group.addoption(
        _OPTION,
        action="store_true",
        help="also run tests of plans (*.test.yaml), without a model",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a test file of plans, if the option is given."""
    if parent.config.getoption(_OPTION) and file_path.name.endswith(_SUFFIXES):
        from amplifier_kit.pytest_plugins.plan_files import PlanFile

        return PlanFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]
    return None
