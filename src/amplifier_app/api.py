"""Amplifier as a library: run plans from Python.

    from amplifier_app import api

    plan = api.load_plan("default", provider="anthropic")
    answer = await api.run(plan, "Which tests cover src/app.py?")
    print(answer.text, answer.cost)

    async with api.open_session(plan) as session:
        await session.run("Read src/app.py.")
        async for event in session.stream("Explain it."):
            if event["type"] == "text":
                print(event["delta"], end="")

    async for row in api.batch(plan, "repos.jsonl", prompt="Review {{repo}}.", folder="out"):
        print(row.id, row.answer.outcome)

Sessions are independent: run as many at once as you like in one event loop. All of them work in the
current directory. What this module documents stays compatible within a major version; anything else in
`amplifier_app` may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from amplifier_app.base.errors import AppError, ConfigError, ModuleError, SessionError, UsageError
from amplifier_app.base.outcome import Ending, Outcome, outcome_of
from amplifier_app.base.stdio import Output
from amplifier_app.commands.batch.execution.library import BatchCall, BatchStopped, results_of
from amplifier_app.commands.batch.options import BatchOptions, RowOptions
from amplifier_app.commands.run.choose import Chosen, choose, open_chosen, session_to_resume
from amplifier_app.commands.run.one_shot import OneShot
from amplifier_app.commands.run.request import Request
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime.acceptance import Requirements
from amplifier_app.runtime.answer_schema import AnswerSchema
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.observer import Level, Renderer
from amplifier_app.runtime.opening import Opening
from amplifier_app.runtime.session import OpenSession
from amplifier_app.sources.plan_resolver import resolver_for

__all__ = [
    "Answer",
    "AppError",
    "BatchStopped",
    "ConfigError",
    "ModuleError",
    "Plan",
    "RowAnswer",
    "Session",
    "SessionError",
    "UsageError",
    "batch",
    "load_plan",
    "open_session",
    "run",
]

Event = dict[str, Any]
"""A line of `--output stream-json`; `amplifier schema events` prints the schema."""

Approve = Literal["deny", "allow", "policy"]


class Answer(NamedTuple):
    """How a prompt ended.

    Attributes:
        text: The answer; empty if there is none.
        outcome: The name of the ending: "ok", "budget", "denied", "provider" …
        exit_code: The exit code of `amplifier run` for it.
        error: What happened, if it is not "ok".
        data: The answer as JSON data, if a schema was given.
        cost: US dollars; None if a price is unknown.
        result: Everything, as `amplifier schema result` describes it.
    """

    text: str
    outcome: str
    exit_code: int
    error: str | None
    data: Any
    cost: float | None
    result: Mapping[str, Any]

    @property
    def is_ok(self) -> bool:
        """Whether the prompt was answered."""
        return self.outcome == Ending.OK.value


class RowAnswer(NamedTuple):
    """How a row of a batch ended.

    Attributes:
        id: The row's `id`, or else a hash of its fields.
        number: Its position in the input, from 1.
        repeat: Which run of the row it is, from 1.
        answer: The answer; its `result` is the line of results.jsonl.
    """

    id: str
    number: int
    repeat: int
    answer: Answer


class Plan:
    """A plan that was loaded; made by `load_plan`.

    Attributes:
        name: Its name.
        digest: Identifies what it does: the `sha256:…` that results contain, too.
        opened: Opens sessions; use `open_session`.
        loaded: What it was loaded from; see `batch`.
    """

    def __init__(self, chosen: Chosen, request: Request) -> None:
        self.name = chosen.plan.name
        self.digest = chosen.plan.digest
        self.opened = _Opener(chosen, request)
        self.loaded = chosen, request


class _Opener:
    """Opens sessions of a plan, whose module sources they share."""

    def __init__(self, chosen: Chosen, request: Request) -> None:
        self._chosen = chosen
        self._request = request
        self._sources = resolver_for(chosen.plan)

    def __call__(
        self, session_id: str | None, save: bool, approvals: Approvals, renderer: Renderer
    ) -> contextlib.AbstractAsyncContextManager[OpenSession]:
        request = self._request._replace(session=session_id or None, no_save=not save)
        chosen = self._chosen._replace(resume=session_to_resume(request))
        return open_chosen(request, chosen, approvals, renderer, self._sources)


def load_plan(
    plan: str | Path | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    tools: Sequence[str] | None = None,
    mode: Literal["ask", "edits", "read-only", "auto"] | None = None,
    trust: bool = False,
) -> Plan:
    """Load a plan.

    Args:
        plan: The path of a plan file, or the name of a profile; by default the default profile.
        provider: The provider to use, by name.
        model: The model to use.
        sets: Changes, as `--set PATH=VALUE` takes them.
        tools: The tools to offer; by default all of the plan.
        mode: Which tool calls are free.
        trust: Trust the `.amplifier` folder of the current project this once.

    Raises:
        ConfigError: The plan cannot be found, is invalid, or its project is not trusted.
    """
    is_file = plan is not None and (isinstance(plan, Path) or os.path.isfile(plan))
    request = Request(
        plan=Path(plan) if plan is not None and is_file else None,
        profile=str(plan) if plan is not None and not is_file else None,
        provider=provider,
        model=model,
        sets=list(sets),
        tools=None if tools is None else ",".join(tools),
        mode=mode,
        trust=trust,
    ).checked()
    return Plan(choose(request, Output(-1)), request)


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
    if approve not in get_args(Approve):
        raise _unknown_approve(approve)
    approvals, renderer = Approvals(approve), _Events()
    async with plan.opened(session_id, save, approvals, renderer) as opened:
        session = Session(plan, opened, approvals, renderer)
        try:
            yield session
        finally:
            session.is_closed = True


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


async def batch(
    plan: Plan,
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    folder: str | os.PathLike[str] | None = None,
    prompt: str | None = None,
    workers: int | None = None,
    repeat: int = 1,
    max_cost: float | None = None,
    max_cost_row: float | None = None,
    stop_after: int | None = None,
    timeout: float | None = None,
    schema: Mapping[str, Any] | None = None,
    checks: Sequence[str] = (),
    workdir: str = "same",
    approve: Approve = "deny",
) -> AsyncGenerator[RowAnswer]:
    """Run a plan over every row of an input, in worker processes, and yield each answer when it is saved.

    With the folder of an earlier call, the batch continues: answers it has come first, rows that were
    interrupted continue their sessions, and no row runs twice. The `amplifier batch` commands work on the
    folder, too. Leaving the loop, if the generator is closed, or cancelling the task stops the rows.

    Args:
        plan: The plan.
        rows: Mappings, or a path as `amplifier batch run` takes it.
        folder: Folder for results and sessions; None for one that is removed at the end.
        prompt: The prompt, with `{{field}}` for fields of the row; by default the plan's, or the field `prompt`.
        workers: How many rows run at a time; by default 8.
        repeat: How many times each row runs.
        max_cost: US dollars at which the batch stops.
        max_cost_row: US dollars at which a row stops.
        stop_after: The number of failed rows at which the batch stops.
        timeout: Seconds a row may take.
        schema: The JSON Schema that answers must match.
        checks: Shell commands that must succeed after an answer.
        workdir: Where rows run: `same`, `fresh`, `copy` or `clone`.
        approve: See `open_session`.

    Raises:
        BatchStopped: It stopped before all rows had ended, for example at `max_cost`.
        ConfigError: The rows are invalid, or differ from those that the folder's batch began with.
        AppError: The batch cannot begin or go on.
    """
    chosen, request = plan.loaded
    if approve not in get_args(Approve):
        raise _unknown_approve(approve)
    request = request._replace(
        plan=None if request.plan is None else request.plan.absolute(),
        max_cost=max_cost_row,
        timeout=timeout,
        check=list(checks),
        approve=approve,
    ).checked()
    options = BatchOptions(
        workers,
        None if max_cost is None else str(max_cost),
        None if stop_after is None else str(stop_after),
    ).checked()
    row = RowOptions(prompt, workdir, repeat)
    call = BatchCall(chosen, request, rows, schema, row, options)
    where = None if folder is None else Path(folder)
    async with contextlib.aclosing(results_of(call, where)) as results:
        async for result in results:
            yield RowAnswer(result["row"], result["number"], result["repeat"], _answer_of(result))


class Session:
    """An open session; made by `open_session`. It runs one prompt at a time; another one waits.

    Attributes:
        id: Its id; `amplifier session show ID` shows it if it is saved.
        is_closed: Whether the `async with` block has ended: no prompt can run any more.
    """

    def __init__(
        self, plan: Plan, opened: OpenSession, approvals: Approvals, events: _Events
    ) -> None:
        self._plan = plan
        self._opened = opened
        self._approvals = approvals
        self._events = events
        self._is_stopped = False
        self._running = asyncio.Lock()
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
        return await self._run(prompt, schema, timeout, None)

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
        return _answer_of(result_object(outcome, report))

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
            if not running.done():
                running.cancel()
                await asyncio.wait([running])

    def stop(self) -> None:
        """Stop the running prompt; its answer has the outcome "interrupted"."""
        self._is_stopped = True
        self._opened.stop(immediate=True)


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


def _unknown_approve(value: str) -> UsageError:
    hint = f"Values: {', '.join(get_args(Approve))}"
    return UsageError(f"approve: unknown value {value!r}", hint=hint)


def _answer_of(result: Mapping[str, Any]) -> Answer:
    cost, error = result["cost"], result["error"]
    return Answer(
        text=result["response"],
        outcome=result["outcome"],
        exit_code=result["exit_code"],
        error=None if error is None else error["message"],
        data=result["data"],
        cost=None if cost is None else cost["usd"],
        result=result,
    )
