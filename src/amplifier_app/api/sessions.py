"""Sessions that are opened from Python, and single prompts."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Literal, get_args

from amplifier_app.api.answers import Answer, answer_of
from amplifier_app.api.plans import Plan
from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.outcome import Ending, Outcome, outcome_of
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.one_shot import OneShot
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime.acceptance import Requirements
from amplifier_app.runtime.answer_schema import AnswerSchema
from amplifier_app.runtime.approvals.requests import Approvals
from amplifier_app.runtime.mounting.progress import Opening
from amplifier_app.runtime.observers.observer import Level
from amplifier_app.runtime.session import OpenSession

Event = dict[str, Any]
"""A line of `--output stream-json`; `amplifier schema events` prints the schema."""

Approve = Literal["deny", "allow", "policy"]


@contextlib.asynccontextmanager
async def open_session(
    plan: Plan, *, session_id: str | None = None, save: bool = True, approve: Approve = "deny"
) -> AsyncGenerator[Session]:
    """Open a session, with the modules of the plan mounted.

    Args:
        plan: The plan.
        session_id: The session to resume, or the id of a new one; by default a new id.
        save: Whether to save a new session.
        approve: How tool calls that need approval are answered; "policy" is each request's default.

    Raises:
        ModuleError: A module cannot be loaded or mounted.
        ConfigError: No provider is available.
        SessionError: The session is in use or damaged.
        UsageError: `approve` is none of these.
    """
    check_approve(approve)
    approvals, renderer = Approvals(approve), _Events()
    opening, running = plan.opened(session_id, save, approvals, renderer), asyncio.Lock()
    async with _in_own_task(opening, running) as opened:
        session = Session(plan, opened, approvals, renderer, running)
        try:
            yield session
        finally:
            session.is_closed = True


_tasks: set[asyncio.Task[None]] = set()


def start_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that may end after its caller.

    Web frameworks cancel the task of a client that has disconnected at each of its waits, not only once, so that
    what must be ended in order needs a task of its own.
    """
    task = asyncio.create_task(coroutine)
    _tasks.add(task)  # The event loop has only weak references.
    task.add_done_callback(_tasks.discard)
    # Its error is raised by the caller, unless no one waits any more.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


@contextlib.asynccontextmanager
async def _in_own_task(
    opening: contextlib.AbstractAsyncContextManager[OpenSession], running: asyncio.Lock
) -> AsyncGenerator[OpenSession]:
    """Open and close a session in a task of its own, so that modules clean up although the caller is cancelled.

    The session then closes in the background, once the prompt has ended that holds `running`.
    """
    opened: asyncio.Future[OpenSession] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def keep() -> None:
        async with opening as session:
            opened.set_result(session)
            await ended.wait()
            async with running:
                pass

    task = start_task(keep())
    try:
        await asyncio.wait([task, opened], return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            yield opened.result()
    finally:
        ended.set()
        if not opened.done():
            task.cancel()
        await asyncio.shield(task)


async def run(
    plan: Plan,
    prompt: str,
    *,
    schema: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    session_id: str | None = None,
    save: bool = True,
    approve: Approve = "deny",
) -> Answer:
    """Send one prompt in a session of its own.

    Args:
        plan: The plan.
        prompt: The prompt.
        schema: The JSON Schema that the answer must match.
        timeout: Seconds until the prompt is stopped.
        session_id: See `open_session`.
        save: See `open_session`.
        approve: See `open_session`.

    Raises:
        AppError: The session cannot be opened; how a prompt ended is in the answer.
    """
    async with open_session(plan, session_id=session_id, save=save, approve=approve) as session:
        return await session.run(prompt, schema=schema, timeout=timeout)


class Session:
    """An open session; made by `open_session`. It runs one prompt at a time; another one waits.

    Attributes:
        id: Its id; `amplifier session show ID` shows it if it is saved.
        is_closed: Whether the `async with` block has ended: no prompt can run any more.
    """

    def __init__(
        self,
        plan: Plan,
        opened: OpenSession,
        approvals: Approvals,
        events: _Events,
        running: asyncio.Lock,
    ) -> None:
        self._plan = plan
        self._opened = opened
        self._approvals = approvals
        self._events = events
        self._is_stopped = False
        self._running = running
        self.is_closed = False

    @property
    def id(self) -> str:
        return self._opened.id

    async def run(
        self, prompt: str, *, schema: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> Answer:
        """Send a prompt and return how it ended.

        Args:
            prompt: The prompt.
            schema: The JSON Schema that the answer must match.
            timeout: Seconds until it is stopped.

        Raises:
            UsageError: `schema` is not a JSON Schema, or `timeout` not a number above 0.
            SessionError: The session is closed.
            asyncio.CancelledError: The task was cancelled; the prompt is stopped.
        """
        running = asyncio.ensure_future(self._run(prompt, schema, timeout, None))
        try:
            return await asyncio.shield(running)
        finally:
            await _cancel(running)

    async def _run(
        self,
        prompt: str,
        schema: Mapping[str, Any] | None,
        timeout: float | None,
        listener: Callable[[Event], None] | None,
    ) -> Answer:
        async with self._running:
            if self.is_closed:
                raise SessionError(
                    f"session {self.id} is closed", hint="Open it again: open_session(session_id=…)"
                )
            self._events.listener = listener
            try:
                return await self._send(prompt, schema, timeout)
            finally:
                self._events.listener = None

    async def _send(
        self, prompt: str, schema: Mapping[str, Any] | None, timeout: float | None
    ) -> Answer:
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise UsageError(f"timeout: expected a number above 0, got {timeout!r}")
        report = RunReport()
        report.plan_digest = self._plan.digest
        report.note_session(self._opened)
        required = Requirements(None if schema is None else AnswerSchema(schema), retries=2)
        deadline = None if timeout is None else time.monotonic() + timeout
        shot = OneShot(self._opened, Opening(deadline), self._approvals, required)
        self._is_stopped = False
        outcome: Outcome | None
        try:
            outcome = await shot.send(prompt, timeout, lambda: self._is_stopped)
        # Modules may raise anything; it is the ending of this prompt.
        except (Exception, SystemExit) as error:
            outcome = outcome_of(error)
        finally:
            shot.fill(report)
        outcome = outcome or Outcome(Ending.INTERRUPTED, "the prompt was stopped")
        return answer_of(result_object(outcome, report))

    async def stream(
        self, prompt: str, *, schema: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Event]:
        """Send a prompt and yield events as they happen, the last one of the type `result`.

        Args:
            prompt: The prompt.
            schema: See `run`.
            timeout: See `run`.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        running = asyncio.ensure_future(self._run(prompt, schema, timeout, queue.put_nowait))
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            yield {"type": "result", **(await running).result}
        finally:
            await _cancel(running)

    def stop(self) -> None:
        """Stop the running prompt; its answer has the outcome "interrupted"."""
        self._is_stopped = True
        self._opened.stop(immediate=True)


async def _cancel(running: asyncio.Future[Answer]) -> None:
    """Stop a prompt that has not ended, and wait for its end."""
    if not running.done():
        running.cancel()
        await asyncio.wait([running])


class _Events(EventStream):
    """Passes events to a listener instead of writing them."""

    def __init__(self) -> None:
        super().__init__(Output(-1), RunReport(), quiet=True)
        self.listener: Callable[[Event], None] | None = None

    def notice(self, message: str, level: Level, source: str) -> None:
        self._event("notice", level=level, message=message, source=source)

    def _event(self, kind: str, **fields: Any) -> None:
        if self.listener is not None:
            self.listener({"type": kind, **fields})


def check_approve(value: str) -> None:
    """
    Raises:
        UsageError: It is none of `Approve`.
    """
    if value not in (values := get_args(Approve)):
        hint = f"Values: {', '.join(values)}"
        raise UsageError(f"approve: unknown value {value!r}", hint=hint)
