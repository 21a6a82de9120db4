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
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from amplifier_app.base.errors import AppError, ConfigError, ModuleError, SessionError, UsageError
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen, choose, open_sources, session_to_resume
from amplifier_app.commands.run.one_shot import OneShot
from amplifier_app.commands.run.opening import open_chosen
from amplifier_app.commands.run.request import Request
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime.acceptance import Requirements
from amplifier_app.runtime.answer_schema import AnswerSchema
from amplifier_app.runtime.approval_program import ask_function
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.attachments import Attachments, read_attachments
from amplifier_app.runtime.mounting.mount import Opening
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.session import OpenSession
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_batch.api import BatchStopped, batch

__all__ = [
    "Answer",
    "AppError",
    "Approval",
    "Approver",
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


logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """The ending of a prompt.

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
        """True if the prompt was answered."""
        return self.outcome == Ending.OK.value


class RowAnswer(NamedTuple):
    """The ending of a row of a batch.

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


def to_answer(result: Mapping[str, Any]) -> Answer:
    """The answer of a result, as `amplifier schema result` describes it."""
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
        self._sources: AppModuleSourceResolver | None = None

    @contextlib.asynccontextmanager
    async def __call__(
        self, session_id: str | None, save: bool, approvals: Approvals, renderer: Renderer
    ) -> AsyncGenerator[OpenSession]:
        if self._sources is None:
            self._sources = await open_sources(self._request, self._chosen)
        request = self._request._replace(session=session_id or None, no_save=not save)
        chosen = self._chosen._replace(resume=session_to_resume(request))
        async with open_chosen(request, chosen, approvals, renderer, self._sources) as session:
            yield session


def load_plan(
    plan: str | Path | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    tools: Sequence[str] | None = None,
    mode: Literal["ask", "edits", "propose", "read-only", "auto"] | None = None,
    trust: bool = False,
) -> Plan:
    """Load a plan.

    Args:
        plan: The path of a plan file, or the name of a profile; by default the default profile.
        provider: The provider to use, by name.
        model: The model to use.
        sets: Changes, as `--set PATH=VALUE` takes them.
        tools: The tools to offer; by default all of the plan.
        mode: Which tool calls need no approval.
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
    ).validate()
    return Plan(choose(request, Output(-1)), request)


Event = dict[str, Any]
"""A line of `--output stream-json`; `amplifier schema events` prints the schema."""

Approve = Literal["deny", "allow", "policy"]

Approval = Mapping[str, Any]
"""A question for approval: see `amplifier docs scripts`."""

Approver = Callable[[Approval], Any]
"""Answers a question for approval with ``"allow"`` or ``"deny"``, or with a mapping with ``decision`` and optionally
``reason`` and ``input``, or with an awaitable of either."""


@contextlib.asynccontextmanager
async def open_session(
    plan: Plan,
    *,
    session_id: str | None = None,
    save: bool = True,
    approve: Approve | Approver = "deny",
) -> AsyncGenerator[Session]:
    """Open a session, with the modules of the plan mounted.

    Args:
        plan: The plan.
        session_id: The session to resume, or the id of a new one; by default a new id.
        save: Whether to save a new session.
        approve: How tool calls that need approval are answered: a function that gets each question, or
            one answer for all; "policy" is each request's default. A function that fails denies.

    Raises:
        ModuleError: A module cannot be loaded or mounted.
        ConfigError: No provider is available.
        SessionError: The session is in use or damaged.
        UsageError: `approve` is none of these.
    """
    approvals, renderer = _approvals(approve), _Events()
    opening, running = plan.opened(session_id, save, approvals, renderer), asyncio.Lock()
    async with _in_own_task(opening, running) as opened:
        approvals.session_id = opened.id
        session = Session(plan, opened, approvals, renderer, running)
        try:
            yield session
        finally:
            session.is_closed = True


def _approvals(approve: Approve | Approver) -> Approvals:
    """
    Raises:
        UsageError: It is neither a function nor one of `Approve`.
    """
    if not callable(approve):
        check_approve(approve)
        return Approvals(approve)
    function, approvals = approve, Approvals("deny")
    approvals.program = lambda asked, timeout: ask_function(function, asked, timeout)
    approvals.warn = lambda text: logger.warning("%s", text)
    return approvals


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
    approve: Approve | Approver = "deny",
    attach: Sequence[Path | str | bytes] = (),
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
        attach: See `Session.run`.

    Raises:
        AppError: The session cannot be opened; how a prompt ended is in the answer.
    """
    async with open_session(plan, session_id=session_id, save=save, approve=approve) as session:
        return await session.run(prompt, schema=schema, timeout=timeout, attach=attach)


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
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        attach: Sequence[Path | str | bytes] = (),
    ) -> Answer:
        """Send a prompt and return how it ended.

        Args:
            prompt: The prompt.
            schema: The JSON Schema that the answer must match.
            timeout: Seconds until it is stopped.
            attach: Images and text files, as paths; images also as bytes.

        Raises:
            UsageError: `schema` is not a JSON Schema, `timeout` not a number above 0, or a file cannot be
                attached.
            SessionError: The session is closed.
            asyncio.CancelledError: The task was cancelled; the prompt is stopped.
        """
        attached = _attachments(attach)
        running = asyncio.ensure_future(self._run(prompt, schema, timeout, None, attached))
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
        attached: Attachments,
    ) -> Answer:
        async with self._running:
            if self.is_closed:
                raise SessionError(
                    f"session {self.id} is closed", hint="Open it again: open_session(session_id=…)"
                )
            self._events.listener = listener
            try:
                self._opened.attach(attached.images)
                return await self._send(attached.add_to(prompt), schema, timeout)
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
            outcome = to_outcome(error)
        finally:
            shot.fill(report)
        outcome = outcome or Outcome(Ending.INTERRUPTED, "the prompt was stopped")
        return to_answer(result_object(outcome, report))

    async def stream(
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        attach: Sequence[Path | str | bytes] = (),
    ) -> AsyncGenerator[Event]:
        """Send a prompt and yield events as they happen, the last one of the type `result`.

        Args:
            prompt: The prompt.
            schema: See `run`.
            timeout: See `run`.
            attach: See `run`.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        running = asyncio.ensure_future(
            self._run(prompt, schema, timeout, queue.put_nowait, _attachments(attach))
        )
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


def _attachments(files: Sequence[Path | str | bytes]) -> Attachments:
    return read_attachments([Path(one) if isinstance(one, str) else one for one in files])


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


def __getattr__(name: str) -> Any:
    # Programs that run no batches do not import them.
    if name in ("BatchStopped", "batch"):
        return getattr(import_module("amplifier_batch.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
