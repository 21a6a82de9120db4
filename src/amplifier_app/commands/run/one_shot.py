"""One prompt of a run, with its time limit, its interrupts and what its answer must meet."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base.blocked_loop import GRACE_SECONDS, block_limit
from amplifier_app.base.json_text import json_line
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import stderr_is_tty, to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen
from amplifier_app.commands.run.opening import (
    approvals_for,
    choose_renderer,
    open_requested_session,
)
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime.acceptance import Attempts, Requirements
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.module_modes import active_module_mode
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.turn_outcome import outcome_of_turn, resume_command
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_app.sessions.summary import RESULT_FILE
from amplifier_core.hooks import call_handler
from amplifier_support.environment import without_secrets

if TYPE_CHECKING:
    from amplifier_app.runtime.answer_schema import AnswerSchema
    from amplifier_app.runtime.checks import Check
    from amplifier_app.runtime.session import OpenSession


def read_schema(request: Request) -> AnswerSchema | None:
    """The schema of the answer; None without `--schema`.

    Raises:
        UsageError: The file cannot be read, or is not a JSON Schema.
    """
    if request.schema is None:
        return None
    from amplifier_app.runtime.answer_schema import AnswerSchema

    return AnswerSchema.read(request.schema)


def checks_of_run(request: Request, plan: ResolvedPlan) -> tuple[Check, ...]:
    """The checks of the plan and of the command line."""
    if not request.check and "checks" not in plan.tree.items:
        return ()
    from amplifier_app.runtime.checks import load_checks

    return load_checks(plan.data, request.check or ())


def requirements(
    request: Request,
    session: OpenSession,
    schema: AnswerSchema | None,
    checks: Sequence[Check],
    row: Mapping[str, Any] | None = None,
) -> Requirements:
    """Return the requirements of the answer; `row` is the row of a batch, for checks."""
    runner = None
    if checks:
        from amplifier_app.runtime.checks import CheckRunner

        runner = CheckRunner(checks, session.session.coordinator, row)
    return Requirements(schema, runner, request.retries)


def write_reports(reports: Sequence[str], outcome: Outcome, report: RunReport) -> None:
    """Write the reports of `--report KIND=FILE`.

    Raises:
        AppError: A file cannot be written.
    """
    from amplifier_app.render.junit import write_report

    response = "" if report.turn is None else report.turn.response
    for option in reports:
        kind, _, file = option.partition("=")
        write_report(kind, Path(file), outcome, response, report.checks)


_NOTIFY_SECONDS = 30.0


def notify(command: str, outcome: Outcome, report: RunReport) -> None:
    """Run the command of `--notify` with the result on stdin; its failure is a warning."""
    text = json_line(result_object(outcome, report)).encode()
    try:
        # It is the user's own, with the user's environment; stdout has the answer only.
        done = subprocess.run(
            command,
            shell=True,
            input=text,
            stdout=2,
            env=without_secrets(os.environ, passthrough=("*",)),
            timeout=_NOTIFY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        to_stderr(f"warning: --notify: it did not end within {_NOTIFY_SECONDS:g} s")
    except OSError as error:
        to_stderr(f"warning: --notify: {error.strerror}")
    else:
        if done.returncode:
            to_stderr(f"warning: --notify: it ended with code {done.returncode}")


async def run_once(
    request: Request,
    invocation: Invocation,
    chosen: Chosen,
    prompt: str,
    opening: Opening,
    schema: AnswerSchema | None,
) -> Outcome:
    """Open the session of a request, send its prompt, and return how it ended.

    Raises:
        AppError: The session cannot be opened.
        Exception: Any error that ended the turn.
    """
    attached = None
    if request.attach:
        from amplifier_app.runtime.attachments import read_attachments

        attached = read_attachments([Path(file) for file in request.attach])
    checks = checks_of_run(request, chosen.plan)
    must_hold = schema is not None or (bool(checks) and not request.stream)
    renderer = choose_renderer(request, invocation, chosen.plan.display, hold=must_hold)
    approvals = approvals_for(
        request, renderer, invocation.stdout, is_plain=not request.draws(chosen.plan.display)
    )
    assert invocation.report is not None
    async with open_requested_session(
        request, invocation, chosen, renderer, approvals, opening
    ) as session:
        shot = OneShot(session, opening, approvals, requirements(request, session, schema, checks))
        mode = active_module_mode(session.session.coordinator)
        if mode not in (None, request.mode):
            renderer.notice(f"mode {mode}; --mode off ends it", "info", "session")
        if "@" in prompt and stderr_is_tty():
            from amplifier_app.chat.project_files import with_files

            included = with_files(prompt, session.facts.working_dir)
            if included.notes or included.problems:
                note = (
                    "the prompt is sent as it is: only the chat adds files that are named with '@'"
                )
                renderer.notice(note, "info", "session")
        if attached is not None:
            session.attach(attached.images)
            prompt = attached.add_to(prompt)
        try:
            async with _attended(request, invocation, session, approvals):
                return await shot.run(prompt, request.timeout)
        finally:
            shot.fill(invocation.report)
            if session.is_saved and stderr_is_tty():
                renderer.notice(f"session {session.id}", "info", "session")


def _attended(
    request: Request, invocation: Invocation, session: OpenSession, approvals: Approvals
) -> AbstractAsyncContextManager[None]:
    """Let a terminal join a run in the background."""
    if session.saved is None or not (session.saved.path / RESULT_FILE).exists():
        return nullcontext()
    from amplifier_app.commands.run.attended import attended
    from amplifier_app.sessions.background import is_detached

    if not is_detached(session.saved.path, invocation.stdout.fd):
        return nullcontext()
    return attended(session, approvals, answers=request.approve in (None, "ask", "park"))


class OneShot:
    """Sends one prompt in a session, until its answer meets the requirements.

    Args:
        session: The session.
        opening: Its deadline, which includes the time it took to open.
        approvals: The approvals it asked for.
        required: What the answer must meet.
    """

    def __init__(
        self, session: OpenSession, opening: Opening, approvals: Approvals, required: Requirements
    ) -> None:
        self._session = session
        self._opening = opening
        self._approvals = approvals
        self._attempts = Attempts(session, required, self.outcome)

    def fill(self, report: RunReport) -> None:
        """Put what has happened into the report of the run."""
        report.turn = self._attempts.turn
        report.checks = self._attempts.checks
        report.data = self._attempts.data
        report.waiting = self._approvals.parked

    async def run(self, prompt: str, timeout: float | None) -> Outcome:
        """Send the prompt and return how it ended; signals stop it.

        Raises:
            Exception: Any error that ended the turn, unless it was stopped.
        """
        with Interrupts(self.stop) as interrupts:
            outcome = await self.send(prompt, timeout, lambda: interrupts.received is not None)
        if outcome is None:
            ending = Ending.TERMINATED if interrupts.terminated else Ending.INTERRUPTED
            return Outcome(ending, ending.value, self._resume_hint)
        return outcome

    def stop(self, immediate: bool) -> None:
        """Stop the running turn or check; see `OpenSession.stop`."""
        self._attempts.stop(immediate)

    def stop_after_step(self) -> None:
        """Stop the running turn after its step; see `Stopping.request_after_step`."""
        self._attempts.stop_after_step()

    async def send(
        self,
        prompt: str,
        timeout: float | None,
        is_stopped: Callable[[], bool],
        answer: str | None = None,
    ) -> Outcome | None:
        """Send the prompt and return how it ended; None if it was stopped.

        Args:
            prompt: The prompt.
            timeout: The time limit of which the deadline was calculated, in seconds.
            is_stopped: Whether `stop` was called.
            answer: See `Attempts.run`.

        Raises:
            Exception: Any error that ended the turn, unless it was stopped.
        """
        expired, late = False, ""

        def expire() -> None:
            nonlocal expired, late
            expired = True
            self.stop(immediate=True)
            late = _running_handlers(self._session.session.coordinator.hooks)

        timer = blocked_after = outcome = None
        if (deadline := self._opening.deadline) is not None:
            timer = asyncio.get_running_loop().call_at(deadline, expire)
            blocked_after = deadline - time.monotonic() + GRACE_SECONDS
        try:
            with block_limit(blocked_after):
                outcome = await self._attempts.run(prompt, answer)
        # A stopped check is cancelled; what stopped it is reported below.
        except (Exception, asyncio.CancelledError):
            if not expired and not is_stopped():
                raise
        finally:
            if timer is not None:
                timer.cancel()
        if is_stopped():
            return None
        if expired or outcome is None:
            message = f"time limit of {timeout:g} s reached{late}"
            return Outcome(Ending.BUDGET, message, self._resume_hint)
        return outcome

    def outcome(self, turn: TurnResult) -> Outcome:
        if (waits := self._approvals.wait) is not None:
            return waits
        session_id = self._session.id if self._session.is_saved else None
        return outcome_of_turn(turn, self._approvals.denial, session_id)

    @property
    def _resume_hint(self) -> str | None:
        session = self._session
        return f"Resume with: {resume_command(session.id)}" if session.is_saved else None


def _running_handlers(hooks: object) -> str:
    """Name the handlers of a session's hooks that the tasks of the event loop wait for."""
    names: dict[str, None] = {}
    for task in asyncio.all_tasks():
        step: Any = task.get_coro()
        is_own = False
        while (frame := getattr(step, "cr_frame", None)) is not None:
            values = frame.f_locals
            is_own = is_own or values.get("self") is hooks
            if is_own and frame.f_code is call_handler.__code__:
                name = str(values["entry"]).replace("Handler", "handler", 1)
                names[f" in {name} on {values['event']}"] = None
            step = step.cr_await
    return " and".join(names)
