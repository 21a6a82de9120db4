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

Sessions are independent: run as many at once as you like in one event loop, each in the current directory or in its
own (`workdir=`). What this module documents stays compatible within a major version; anything else in
`amplifier_app` may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import yaml

from amplifier_app.base.errors import AppError, ConfigError, ModuleError, SessionError, UsageError
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen, choose, open_sources, session_to_resume
from amplifier_app.commands.run.one_shot import OneShot
from amplifier_app.commands.run.opening import open_chosen
from amplifier_app.commands.run.request import Request
from amplifier_app.render.event_types import Event, ResultEvent
from amplifier_app.render.events import EventStream
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime.acceptance import Requirements
from amplifier_app.runtime.answer_schema import AnswerSchema, TypedAnswerSchema
from amplifier_app.runtime.approval_program import ask_function
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.attachments import Attachments, read_attachments
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.session import Adjustment, OpenSession
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.working_folder import working_in

if TYPE_CHECKING:
    from amplifier_app.runtime.function_tools import FunctionTools
    from amplifier_batch.api import BatchStopped, batch

__all__ = [
    "Answer",
    "AppError",
    "Approval",
    "Approver",
    "BatchStopped",
    "ConfigError",
    "Event",
    "ModuleError",
    "Plan",
    "RowAnswer",
    "Session",
    "SessionError",
    "UsageError",
    "batch",
    "load_plan",
    "open",
    "open_session",
    "run",
    "run_sync",
]


logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """The ending of a prompt.

    Attributes:
        text: The answer; empty if there is none.
        outcome: The name of the ending: "ok", "budget", "denied", "provider" …
        exit_code: The exit code of `amplifier run` for it.
        error: What happened, if it is not "ok".
        data: The answer as JSON data, if a schema was given, or as an object of the type that was given.
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
        functions: The functions that are offered as tools; None if there are none.
        data: The plan as it was given, if that was as data, which no file has.
        workdir: The absolute path of the folder its sessions work in; None for the current directory of the process.
        opened: Opens sessions; use `open_session`.
        loaded: What it was loaded from; see `batch`.
    """

    def __init__(
        self,
        chosen: Chosen,
        request: Request,
        functions: FunctionTools | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        workdir: str | None = None,
        adjustment: Adjustment | None = None,
    ) -> None:
        self.name = chosen.plan.name
        self.digest = chosen.plan.digest
        self.functions = functions
        self.workdir = workdir
        self.data = data
        self.opened = _Opener(chosen, request, adjustment or functions, workdir)
        self.loaded = chosen, request

    def in_folder(self, workdir: str | Path) -> Plan:
        """Return the same plan for another working directory: with the project, settings and trust of that.

        Raises:
            ConfigError: The folder does not exist, or its project is not trusted.
        """
        _, request = self.loaded
        return _load(request._replace(trust=False), self.data, self.functions, workdir)


class _Opener:
    """Opens sessions of a plan, whose module sources they share."""

    def __init__(
        self, chosen: Chosen, request: Request, adjustment: Adjustment | None, workdir: str | None
    ) -> None:
        self._chosen = chosen
        self._request = request
        self._adjustment = adjustment
        self._workdir = workdir
        self._sources: AppModuleSourceResolver | None = None

    @contextlib.asynccontextmanager
    async def __call__(
        self, session_id: str | None, save: bool, approvals: Approvals, renderer: Renderer
    ) -> AsyncGenerator[OpenSession]:
        with working_in(self._workdir):
            if self._sources is None:
                self._sources = await open_sources(self._request, self._chosen)
            request = self._request._replace(session=session_id or None, no_save=not save)
            chosen = self._chosen._replace(resume=session_to_resume(request))
            async with open_chosen(
                request, chosen, approvals, renderer, self._sources, adjustment=self._adjustment
            ) as session:
                yield session


def load_plan(
    plan: str | Path | Mapping[str, Any] | None = None,
    *,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    tools: Sequence[str] | None = None,
    functions: Sequence[Callable[..., Any]] = (),
    mode: Literal["ask", "edits", "propose", "read-only", "auto"] | None = None,
    trust: bool = False,
    workdir: str | Path | None = None,
) -> Plan:
    """Load a plan.

    Args:
        plan: The path of a plan file, the name of a profile, or the plan itself; by default the default profile.
            Relative paths start at the current directory of the process.
        provider: The provider to use, by name.
        model: The model to use.
        sets: Changes, as `--set PATH=VALUE` takes them.
        tools: The tools of the plan to offer; by default all of them.
        functions: Functions of this program to offer as tools, to sub-agents, too. They need no approval,
            unless a rule or the mode denies them. Each has its name, parameters and docstring.
        mode: Which tool calls need no approval.
        trust: Trust the `.amplifier` folder of the current project this once.
        workdir: The folder that sessions of the plan work in, and whose project and settings apply; by default the current
            directory of the process, which stays as it is.

    Raises:
        ConfigError: The plan cannot be found, is invalid, its project is not trusted, or the folder does not exist.
        UsageError: A function cannot be a tool.
    """
    data = plan if isinstance(plan, Mapping) else None
    given = None if isinstance(plan, Mapping) else plan
    looks_like_file = isinstance(given, Path) or str(given).endswith((".yaml", ".yml", ".md"))
    is_file = given is not None and (looks_like_file or os.path.isfile(given))
    request = Request(
        plan=Path(given) if given is not None and is_file else None,
        profile=None if given is None or is_file else str(given),
        provider=provider,
        model=model,
        sets=list(sets),
        folder=os.getcwd() if sets else None,
        tools=None if tools is None else ",".join(tools),
        mode=mode,
        trust=trust,
    ).validate()
    tools_of_program = _function_tools(functions, request) if functions else None
    return _load(request, data, tools_of_program, workdir)


def _load(
    request: Request,
    data: Mapping[str, Any] | None,
    functions: FunctionTools | None,
    workdir: str | Path | None,
) -> Plan:
    # Without links, as the system reports it to a program that works there: saved sessions are found by it.
    folder = None if workdir is None else os.path.realpath(workdir)
    if folder is not None and not os.path.isdir(folder):
        raise ConfigError(f"workdir: {folder} is not a folder")
    with contextlib.ExitStack() as resources:
        resources.enter_context(working_in(folder))
        if data is not None:
            request = request._replace(plan=resources.enter_context(_as_file(data)))
        chosen = choose(request, Output(-1))
    # It is read again for other folders, and by the workers of batches.
    if request.plan is not None:
        request = request._replace(plan=request.plan.expanduser().absolute())
    return Plan(chosen, request, functions, data=data, workdir=folder)


@contextlib.contextmanager
def _as_file(plan: Mapping[str, Any]) -> Generator[Path]:
    """Make a plan readable as a file while it is loaded; its relative paths start at the current directory.

    Raises:
        UsageError: It has values that YAML has no form for.
    """
    try:
        text = yaml.safe_dump({"name": "plan", **plan}, sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise UsageError(f"the plan is not plain data: {error}") from error
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield Path(f"/dev/fd/{file.fileno()}")


def _function_tools(functions: Sequence[Callable[..., Any]], request: Request) -> FunctionTools:
    # Programs without functions do not import them.
    from amplifier_app.runtime.function_tools import FunctionTools  # noqa: PLC0415
    from amplifier_app.runtime.session import ToolSelection  # noqa: PLC0415

    tools = request.tools
    return FunctionTools(functions, None if tools is None else ToolSelection.parse(tools))


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
    workdir: str | Path | None = None,
) -> AsyncGenerator[Session]:
    """Open a session, with the modules of the plan mounted.

    Args:
        plan: The plan.
        session_id: The session to resume, or the id of a new one; by default a new id.
        save: Whether to save a new session.
        approve: How tool calls that need approval are answered: a function that gets each question, or
            one answer for all; "policy" is each request's default. A function that fails denies.
        workdir: The folder that the session works in, instead of the plan's: see `Plan.in_folder`.

    Raises:
        ModuleError: A module cannot be loaded or mounted.
        ConfigError: No provider is available, or the folder or its project cannot be used.
        SessionError: The session is in use or damaged.
        UsageError: `approve` is none of these.
    """
    if workdir is not None:
        plan = plan.in_folder(workdir)
    approvals, renderer = _approvals(approve, plan.functions), _Events()
    opening, running = plan.opened(session_id, save, approvals, renderer), asyncio.Lock()
    async with _in_own_task(opening, running) as opened:
        approvals.session_id = opened.id
        session = Session(plan, opened, approvals, renderer, running)
        try:
            yield session
        finally:
            session.is_closed = True


async def open(
    plan: Plan,
    *,
    session_id: str | None = None,
    save: bool = True,
    approve: Approve | Approver = "deny",
    workdir: str | Path | None = None,
) -> Session:
    """Open a session that stays open until `Session.close`, for notebooks; see `open_session`."""
    resources = contextlib.AsyncExitStack()
    opening = open_session(plan, session_id=session_id, save=save, approve=approve, workdir=workdir)
    session = await resources.enter_async_context(opening)
    session.resources = resources
    return session


def _approvals(approve: Approve | Approver, functions: FunctionTools | None) -> Approvals:
    """
    Raises:
        UsageError: It is neither a function nor one of `Approve`.
    """
    if not callable(approve):
        check_approve(approve)
    approvals = Approvals("deny" if callable(approve) else approve)
    if not callable(approve) and functions is None:
        return approvals

    def decide(asked: Approval) -> Any:
        # What the program itself offers, it allows.
        if functions is not None and asked.get("tool") in functions.tools:
            return "allow"
        return approve(asked) if callable(approve) else "ask"

    approvals.program = lambda asked, timeout: ask_function(decide, asked, timeout)
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
    answer_type: Any = None,
    timeout: float | None = None,
    session_id: str | None = None,
    save: bool = True,
    approve: Approve | Approver = "deny",
    workdir: str | Path | None = None,
    attach: Sequence[Path | str | bytes] = (),
    on_event: Callable[[Event], None] | None = None,
) -> Answer:
    """Send one prompt in a session of its own.

    Args:
        plan: The plan.
        prompt: The prompt.
        schema: The JSON Schema that the answer must match.
        answer_type: See `Session.run`.
        timeout: Seconds until the prompt is stopped.
        session_id: See `open_session`.
        save: See `open_session`.
        approve: See `open_session`.
        workdir: See `open_session`.
        attach: See `Session.run`.
        on_event: See `Session.run`.

    Raises:
        AppError: The session cannot be opened; how a prompt ended is in the answer.
    """
    async with open_session(
        plan, session_id=session_id, save=save, approve=approve, workdir=workdir
    ) as session:
        return await session.run(
            prompt,
            schema=schema,
            answer_type=answer_type,
            timeout=timeout,
            attach=attach,
            on_event=on_event,
        )


def run_sync(plan: Plan, prompt: str, **options: Any) -> Answer:
    """Send one prompt and wait for its answer: `run` for programs without asyncio, and for notebooks.

    Args:
        plan: The plan.
        prompt: The prompt.
        options: The other arguments of `run`.

    Raises:
        AppError: The session cannot be opened; how a prompt ended is in the answer.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run(plan, prompt, **options))
    # Notebooks run their cells in an event loop, which cannot run another one.
    begun: Future[Callable[[], object]] = Future()
    ended: Future[Answer] = Future()

    async def send() -> Answer:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await run(plan, prompt, **options)

    def work() -> None:
        try:
            ended.set_result(asyncio.run(send()))
        # Whatever it is, it is raised where the answer is waited for.
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        return ended.result()
    except BaseException:
        if not ended.done():  # Ctrl-C
            begun.result()()
        raise
    finally:
        thread.join()


class Session:
    """An open session; made by `open_session`. It runs one prompt at a time; another one waits.

    Attributes:
        id: Its id; `amplifier session show ID` shows it if it is saved.
        is_closed: Whether it was closed: no prompt can run any more.
        resources: What `close` closes; empty if an `async with` block does.
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
        self.resources = contextlib.AsyncExitStack()

    @property
    def id(self) -> str:
        return self._opened.id

    async def close(self) -> None:
        """Close a session that was opened with `open`; does nothing if it is closed."""
        await self.resources.aclose()

    async def run(
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any] | None = None,
        answer_type: Any = None,
        timeout: float | None = None,
        attach: Sequence[Path | str | bytes] = (),
        on_event: Callable[[Event], None] | None = None,
    ) -> Answer:
        """Send a prompt and return how it ended.

        Args:
            prompt: The prompt.
            schema: The JSON Schema that the answer must match.
            answer_type: The type that the answer must have, such as a pydantic model, a dataclass or
                `list[int]`: `data` is an object of it. The model may correct what its rules refuse.
            timeout: Seconds until it is stopped.
            attach: Images and text files, as paths; images also as bytes.
            on_event: Called with each event as it happens, except the `result`. It must not block; what it raises is logged.

        Raises:
            UsageError: The prompt is empty, `schema` is not a JSON Schema, `answer_type` has none or both are given,
                `timeout` is not a number above 0, a file cannot be attached, or `on_event` is async.
            SessionError: The session is closed.
            asyncio.CancelledError: The task was cancelled; the prompt is stopped.
        """
        attached = _attachments(attach)
        required = _required(schema, answer_type)
        running = asyncio.ensure_future(self._run(prompt, required, timeout, on_event, attached))
        try:
            return await asyncio.shield(running)
        finally:
            await _cancel(running)

    async def _run(
        self,
        prompt: str,
        schema: AnswerSchema | None,
        timeout: float | None,
        listener: Callable[[Event], None] | None,
        attached: Attachments,
    ) -> Answer:
        async with self._running:
            if self.is_closed:
                raise SessionError(
                    f"session {self.id} is closed", hint="Open it again: open_session(session_id=…)"
                )
            if not (text := attached.add_to(prompt)).strip():
                raise UsageError("the prompt is empty")
            if inspect.iscoroutinefunction(listener):
                raise UsageError("on_event: expected a plain function, not an async one")
            self._events.listener = listener
            try:
                with working_in(self._plan.workdir):
                    self._opened.attach(attached.images)
                    return await self._send(text, schema, timeout)
            finally:
                self._events.listener = None

    async def _send(
        self, prompt: str, schema: AnswerSchema | None, timeout: float | None
    ) -> Answer:
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise UsageError(f"timeout: expected a number above 0, got {timeout!r}")
        report = RunReport()
        report.plan_digest = self._plan.digest
        report.note_session(self._opened)
        required = Requirements(schema, retries=2)
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
        answer = to_answer(result_object(outcome, report))
        if isinstance(schema, TypedAnswerSchema) and answer.is_ok:
            return answer._replace(data=schema.to_object(answer.data))
        return answer

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
            self._run(
                prompt, _required(schema, None), timeout, queue.put_nowait, _attachments(attach)
            )
        )
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (event := await queue.get()) is not None:
                yield event
            yield cast("ResultEvent", {"type": "result", **(await running).result})
        finally:
            await _cancel(running)

    def stop(self) -> None:
        """Stop the running prompt; its answer has the outcome "interrupted"."""
        self._is_stopped = True
        self._opened.stop(immediate=True)


def _required(schema: Mapping[str, Any] | None, answer_type: Any) -> AnswerSchema | None:
    """
    Raises:
        UsageError: The schema is none, the type has none, or both are given.
    """
    if answer_type is None:
        return None if schema is None else AnswerSchema(schema)
    if schema is not None:
        raise UsageError("schema and answer_type cannot both be given")
    return TypedAnswerSchema(answer_type)


def _attachments(files: Sequence[Path | str | bytes]) -> Attachments:
    return read_attachments([Path(file) if isinstance(file, str) else file for file in files])


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
            self.listener(cast("Event", {"type": kind, **fields}))


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
