"""Test files of plans as pytest collects, runs and reports them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import to_outcome
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.plan.tree.problems import Problems
from amplifier_kit.plan_tests.cases import Case, read_cases
from amplifier_kit.plan_tests.expectations import Tested, run_case
from amplifier_kit.plan_tests.report import failure_lines
from amplifier_kit.plan_tests.running import Runner

_RUNNER: pytest.StashKey[Runner] = pytest.StashKey()


class PlanFile(pytest.File):
    """A file of tests."""

    def collect(self) -> Iterator[pytest.Item]:
        """Collect its tests.

        Raises:
            pytest.Collector.CollectError: The file is invalid.
        """
        problems = Problems()
        # The short summary of pytest has little space.
        label = os.path.relpath(self.path, self.config.invocation_params.dir)
        try:
            cases = read_cases(self.path, problems, label)
            problems.raise_if_any()
        except ConfigError as error:
            raise self.CollectError(to_outcome(error).message) from None
        for case in cases:
            # pytest cannot select names with '::'.
            name = case.name.replace("::", ":")
            # A name with brackets would be another id than the one that `--lf` reads.
            nodeid = f"{self.nodeid}::{name}"
            yield PlanTest.from_parent(self, name=name, nodeid=nodeid, case=case)


class PlanTest(pytest.Item):
    """A test of a plan."""

    def __init__(self, *, case: Case, **more: Any) -> None:
        super().__init__(**more)
        self._case = case

    def runtest(self) -> None:
        """Run it.

        Raises:
            PlanTestFailed: An expectation is not met, or the test cannot run.
        """
        test = run_loop(run_case(_runner(self.config), self._case))
        if test.status != "passed":
            raise PlanTestFailed(test)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The expectation and the result; a traceback only for other errors."""
        if not isinstance(excinfo.value, PlanTestFailed):
            return super().repr_failure(excinfo, style)
        return redact(for_terminal("\n".join(failure_lines(excinfo.value.tested))))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place of the test, with the line counted from 0."""
        line = self._case.at.line
        return self.path, None if line is None else line - 1, self.name


class PlanTestFailed(Exception):
    """A test of a plan that did not pass.

    Attributes:
        tested: What happened.
    """

    def __init__(self, tested: Tested) -> None:
        super().__init__(tested.case.id)
        self.tested = tested


def _runner(config: pytest.Config) -> Runner:
    """The runner of a pytest run, which loads each plan once."""
    if _RUNNER not in config.stash:
        config.stash[_RUNNER] = Runner()
    return config.stash[_RUNNER]
