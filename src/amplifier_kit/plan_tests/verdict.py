"""Run one test and compare its outcome with its expectations."""

from __future__ import annotations

import time
from typing import NamedTuple

from amplifier_app.base.errors import AppError
from amplifier_app.base.outcome import Outcome, outcome_of
from amplifier_app.runtime.turns.turn import NO_TURN, TurnResult
from amplifier_kit.plan_tests.cases import Case
from amplifier_kit.plan_tests.expectations import Failure, failures_of
from amplifier_kit.plan_tests.running import Runner


class Tested(NamedTuple):
    """A test that was run.

    Attributes:
        case: The test.
        failures: The expectations that are not met.
        seconds: How long it took.
        error: Why it could not run; None if it could.
        outcome: How the run ended; None if it could not run.
        turn: What happened.
        notes: Warnings of the session and its modules.
        recorded: Whether its model was recorded.
    """

    case: Case
    failures: tuple[Failure, ...]
    seconds: float
    error: Outcome | None = None
    outcome: Outcome | None = None
    turn: TurnResult = NO_TURN
    notes: tuple[str, ...] = ()
    recorded: bool = False

    @property
    def status(self) -> str:
        """`passed`, `failed` or `error`."""
        if self.error is not None:
            return "error"
        return "failed" if self.failures else "passed"


async def run_case(runner: Runner, case: Case) -> Tested:
    """Run a test; a test that cannot run is reported with the reason."""
    started = time.monotonic()
    try:
        ran = await runner.run(case)
        failures = tuple(failures_of(case, ran))
    except AppError as error:
        return Tested(case, (), time.monotonic() - started, error=outcome_of(error))
    return Tested(
        case,
        failures,
        time.monotonic() - started,
        outcome=ran.outcome,
        turn=ran.turn,
        notes=ran.notes,
        recorded=ran.is_recorded,
    )
