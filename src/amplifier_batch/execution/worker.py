"""A worker of a batch: loads the plan once, then runs the rows it is given, many at once.

It reads JSON lines from stdin: on a cluster `{"keys"}`, variables with secrets; then the setup, `{"request", "working_dir", "economy", "scores", "cache", "sealed", "node"}`,
then any number of

    {"row": {"id", "prompt", "fields", "session", "begun", "workdir", "run", "alone", "files", "more", "problem"}}
    {"stop": "now" | "after the tool" | "after the request"}
    {"reply", "answer", "refused", "batch"}  to a request of a row
    {"reply", "problem"}                     its files are sealed, or why they are not

and writes `{"ready": true}` and for its rows

    {"id", "cost"}       what the session has cost so far; null if the price of its model is not known
    {"id", "result", "is_storage_error", "scores"}     how it ended
    {"id", "stopped"}    it was stopped, and can be continued
    {"id", "ask", "request"}    it requests an answer of its model, which may arrive later
    {"id", "ask", "seal"}       it waits until its files and the session's are sealed (with `sealed`)

`node` and `files` are for a node that does not share
the disk of the batch, which asks the parent for more, see
`amplifier_batch.engines.services`; `problem` is why such a row has no files, and a hint.

Rows with different working directories come one at a time. It ends with its input: if the parent is gone,
another process may continue the rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError, ConfigError, SessionError
from amplifier_app.base.json_text import json_line
from amplifier_app.base.outcome import OK, Outcome, has_storage_error, to_outcome
from amplifier_app.base.stdio import Output, claim_stdout, open_standard_streams
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.run.choose import Chosen, choose, open_sources, session_to_resume
from amplifier_app.commands.run.one_shot import OneShot, checks_of_run, read_schema, requirements
from amplifier_app.commands.run.opening import (
    collect_garbage_rarely,
    keep_questions,
    open_chosen,
)
from amplifier_app.commands.run.request import Request
from amplifier_app.render.result import RunReport, cost_object, result_object
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.continuation import finished_answer, prompt_to_continue
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.notices import notice_handlers
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.session import OpenSession, ToolSelection
from amplifier_app.runtime.turns.turn import EventHandler
from amplifier_app.sessions.conversation import CONTINUE
from amplifier_app.sessions.lock import InUse
from amplifier_app.sessions.waiting import prompt_of_answers
from amplifier_batch.answer_cache import AnswerCache
from amplifier_batch.engines.pool import RowTask, StopTime
from amplifier_batch.execution.node import Node, NodeRow, take_keys
from amplifier_batch.open_files import allow_many_files
from amplifier_batch.record.replica import SESSIONS, Change
from amplifier_batch.workdirs import Workdir
from amplifier_core.llm_errors import ConfigurationError
from amplifier_modules._shared.pacing import pace_in
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest
from amplifier_support.sandbox.system_calls import forbid_inspection
from amplifier_support.session_capabilities import BUDGET, DEFERRAL, PACE, REPLICATE
from amplifier_support.usage import dollars

if TYPE_CHECKING:
    from amplifier_app.runtime.answer_schema import AnswerSchema
    from amplifier_app.runtime.checks import Check
    from amplifier_batch.scoring import ScoreChecks, Scoring

_exit = os._exit  # not as the event loop replaces it

_MAX_LINE = 1 << 30

_MAX_NOTICES = 100
"""Of a row, so that a module in a loop does not fill the results."""


class Shared(NamedTuple):
    """The common parts of the rows of a worker.

    Attributes:
        request: The plan and the options of every row.
        chosen: What the request resolves to.
        sources: Where the modules come from.
        schema: The JSON Schema of the answers.
        checks: The checks of the answers.
        scoring: The scores that the outcome of a row depends on; None if there are none.
        node: The rows' files, on a node that does not share the disk of the batch.
        economy: Whether rows get their answers at batch prices, from the parent.
        cache: Whether they get answers from the cache that batches share.
        sealed: Whether a row goes on only once the parent has sealed its files.
    """

    request: Request
    chosen: Chosen
    sources: Any
    schema: AnswerSchema | None
    checks: Sequence[Check]
    scoring: Scoring | None
    node: Node | None
    economy: bool
    cache: bool
    sealed: bool


class Worker:
    """Runs rows in one event loop."""

    def __init__(self, shared: Shared, output: Output) -> None:
        self.shared = shared
        self._output = output
        self._rows: dict[asyncio.Task[None], RowRun] = {}
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._questions = 0

    def report(self, message: dict[str, Any]) -> None:
        """Send a message to the parent."""
        self._output.write(json_line(message))

    def handle(self, message: dict[str, Any]) -> None:
        """Start a row, or stop all."""
        if "row" in message:
            fields = message["row"]
            files = fields.pop("files", ()), fields.pop("more", False)
            problem = fields.pop("problem", None)
            row = RowTask(workdir=Workdir(*fields.pop("workdir")), **fields)
            run = RowRun(self, row, files, problem and AppError(problem[0], hint=problem[1]))
            task = asyncio.get_running_loop().create_task(run.run())
            self._rows[task] = run
            task.add_done_callback(self._rows.pop)
            return
        if "reply" in message:
            reply = self._asked.get(message["reply"])
            if reply is not None and not reply.done():
                reply.set_result(message)
            return
        for run in self._rows.values():
            run.stop(message["stop"])

    async def ask(self, **fields: Any) -> dict[str, Any]:
        """Send a question to the parent and wait for the reply. Raises SessionError for a problem with the row's files."""
        self._questions += 1
        number = self._questions
        reply = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.report({"ask": number, **fields})
            answer = await reply
        finally:
            del self._asked[number]
        if problem := answer.get("problem"):
            raise SessionError(problem)
        return answer


class Notices(Renderer):
    """Collects what `amplifier run` would write to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[str] = []
        self._left_out = 0

    @property
    def messages(self) -> list[str]:
        """One for each, such as `warning: anthropic: overloaded; retrying in 2 s`; the first ones of very many."""
        more = [describe.count(self._left_out, "more message")] if self._left_out else []
        return [*self._messages, *more]

    def handlers(self) -> dict[str, EventHandler]:
        return notice_handlers(self)

    def notice(self, message: str, level: Level, source: str) -> None:
        if source == "check":
            return  # The results already contain the checks.
        if len(self._messages) < _MAX_NOTICES:
            self._messages.append(message if level == "info" else f"{level}: {message}")
        else:
            self._left_out += 1


class RowRun:
    """One row that runs.

    Args:
        worker: Its worker.
        task: The row.
        files: Its files, for a node, and whether there are more.
        problem: Why it cannot run.
    """

    def __init__(
        self,
        worker: Worker,
        task: RowTask,
        files: tuple[Sequence[Change], bool],
        problem: AppError | None,
    ) -> None:
        self._worker = worker
        self._task = task
        self._files = files
        self._problem = problem
        self._node_row: NodeRow | None = None
        self._shot: OneShot | None = None
        self._scores: ScoreChecks | None = None
        self._is_stopped = False
        self._cost: float | None = 0.0
        self._report = RunReport()
        self._report.plan_digest = worker.shared.chosen.plan.digest
        self._notices = Notices()
        self._totals: dict[str, Any] = {}

    def stop(self, when: StopTime) -> None:
        """Stop it; it is continued later."""
        self._is_stopped = True
        if self._shot is None:
            return
        if when == "after the request":
            self._shot.stop_after_step()
        else:
            self._shot.stop(when == "now")

    async def run(self) -> None:
        """Run the row to its end and report it."""
        report, is_storage_error = self._report, False
        try:
            try:
                outcome = await self._run()
            finally:
                await self._leave_node()
        # Whatever a module raises ends this row, not the others.
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            outcome = to_outcome(error)
            is_storage_error = has_storage_error(error)
            if isinstance(error, InUse):
                # The dispatcher tries again; a copy of the session would be a second row.
                outcome = outcome._replace(hint=None)
        if outcome is None:
            self._worker.report({"id": self._task.id, "stopped": True})
            return
        result = {**result_object(outcome, report), **self._totals}
        result["notices"] = self._notices.messages
        ended = {"id": self._task.id, "result": result, "is_storage_error": is_storage_error}
        scores = [] if self._scores is None else [*self._scores.scores.values()]
        self._worker.report({**ended, "scores": scores})

    async def _leave_node(self) -> None:
        if self._node_row is not None:
            await self._node_row.send_changes()
            await asyncio.to_thread(self._node_row.remove)

    async def _run(self) -> Outcome | None:
        shared = self._worker.shared
        if self._problem is not None:
            raise self._problem
        if shared.node is not None:
            self._node_row = await shared.node.open_row(self._task, *self._files, self._worker.ask)
            self._task = self._node_row.task
        task, limit = self._task, shared.request.timeout
        opening = Opening(None if limit is None else time.monotonic() + limit)
        approvals = Approvals(shared.request.approve or "deny")  # no one can be asked
        if task.workdir.kind != "same":
            await asyncio.to_thread(task.workdir.prepare)
        if os.getcwd() != task.workdir.target:
            os.chdir(task.workdir.target)
        async with self._open(shared, approvals, opening) as session:
            coordinator = session.session.coordinator
            self._report.note_session(session)
            keep_questions(session, approvals)
            if shared.economy:
                DEFERRAL.register(coordinator, _Deferral(self._worker, task.id, session))
            if self._node_row is None:
                PACE.register(coordinator, pace_in(str(paths.state_dir() / "pace")))
                if shared.sealed:
                    REPLICATE.register(coordinator, self._seal)
            else:
                self._node_row.register(coordinator)
            self._watch_cost(session)
            checks = shared.checks
            required = requirements(shared.request, session, shared.schema, checks, task.fields)
            if shared.scoring is not None:
                self._scores = shared.scoring.checks(
                    checks, coordinator, task.fields, lambda: self._so_far(session)
                )
                required = required._replace(checks=self._scores)
            self._shot = OneShot(session, opening, approvals, required)
            try:
                return await self._send(session, self._shot, approvals)
            finally:
                self._totals = _totals(session, self._task)

    def _open(
        self, shared: Shared, approvals: Approvals, opening: Opening
    ) -> AbstractAsyncContextManager[OpenSession]:
        """Open the session of the row, new or continued."""
        request = shared.request._replace(session=self._task.session)
        resume = session_to_resume(request) if self._task.begun else None
        adjustment = None if request.tools is None else ToolSelection.parse(request.tools)
        if shared.cache:
            exchange = None if self._node_row is None else self._node_row.exchange_answer
            adjustment = AnswerCache(self._task.run, adjustment, exchange)
        return open_chosen(
            request,
            shared.chosen._replace(resume=resume),
            approvals,
            self._notices,
            shared.sources,
            opening,
            adjustment,
            row=self._task.id,
        )

    async def _seal(self, folder: Path) -> None:
        await self._worker.ask(id=self._task.id, seal=f"{SESSIONS}/{folder.name}")

    def _so_far(self, session: OpenSession) -> dict[str, Any]:
        if self._shot is not None:
            self._shot.fill(self._report)
        return {**result_object(OK, self._report), **_totals(session, self._task)}

    async def _send(
        self, session: OpenSession, shot: OneShot, approvals: Approvals
    ) -> Outcome | None:
        prompt, answer = self._task.prompt, None
        if self._is_stopped:
            return None
        if self._task.begun and approvals.waiting is not None and approvals.waiting.open:
            # A kill came between the question and the end of the row.
            approvals.parked.extend(approvals.waiting.open)
            shot.fill(self._report)
            return approvals.wait
        if self._task.begun:
            answer = await finished_answer(session)
        if self._task.begun and answer is None:
            prompt = await prompt_to_continue(session, prompt)
            if prompt == CONTINUE and session.saved is not None:
                prompt = prompt_of_answers(session.saved.path) or prompt
        try:
            limit = self._worker.shared.request.timeout
            return await shot.send(prompt, limit, lambda: self._is_stopped, answer)
        finally:
            shot.fill(self._report)

    def _watch_cost(self, session: OpenSession) -> None:
        budget = BUDGET.of(session.session.coordinator)
        if budget is None:
            return

        def changed() -> None:
            spent = budget.as_dict()
            cost = None if spent.get("unpriced") else float(dollars(spent.get("cost_usd")) or 0)
            if cost != self._cost:
                self._cost = cost
                self._worker.report({"id": self._task.id, "cost": cost})

        budget.listen(changed)


class _Deferral:
    """Gets answers to the requests of a row from the parent; see `amplifier_support.provider_batches.Deferral`.

    The cost of an answer may be saved and the answer itself lost, as they are in different files.
    So the metadata also has, for each session of the row, the batch whose answer was counted last.
    """

    def __init__(self, worker: Worker, row_id: str, session: OpenSession) -> None:
        self._worker = worker
        self._row_id = row_id
        metadata = {} if session.saved is None else session.saved.metadata
        counted = metadata.get("counted")
        self._counted: dict[str, str] = counted if isinstance(counted, dict) else {}
        metadata["counted"] = self._counted

    async def answer(self, request: DeferredRequest) -> DeferredAnswer | None:
        reply = await self._worker.ask(id=self._row_id, request=[*request])
        if reply["refused"] is not None:
            raise ConfigurationError(reply["refused"])
        if reply["answer"] is None:
            return None
        answer = DeferredAnswer(*reply["answer"])
        if answer.status != 200:
            return answer
        is_counted = self._counted.get(request.session) == reply["batch"]
        # Saved together with the cost.
        self._counted[request.session] = reply["batch"]
        return answer._replace(is_counted=is_counted)


def _totals(session: OpenSession, task: RowTask) -> dict[str, Any]:
    """Steps, tokens and cost of all runs of a session."""
    usage, spent = session.usage, session.budget.as_dict() or {}
    cost = usage.cost_usd
    if "cost_usd" in spent and not spent.get("unpriced"):
        # Counted at once, so that it includes what a crash interrupted.
        cost = dollars(spent["cost_usd"])
    steps = {"steps": session.saved.steps} if task.begun and session.saved is not None else {}
    return {**steps, "usage": dict(usage.tokens), "cost": cost_object(cost)}


async def _open_scoring(
    request: Request, chosen: Chosen, setup: Mapping[str, Any]
) -> Scoring | None:
    """Load the scores that the outcome of a row depends on; their processes end with this one."""
    if "scores" not in chosen.plan.tree.items:
        return None
    from amplifier_batch.scores import load_scorers
    from amplifier_batch.scoring import Scoring

    scorers = [scorer for scorer in load_scorers(chosen.plan, setup["scores"]) if scorer.threshold]
    if not scorers:
        return None
    scoring = Scoring(scorers, request, chosen, cache=setup["cache"])
    await scoring.load()
    return scoring


async def _serve(output: Output) -> NoReturn:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    setup: Mapping[str, Any] = json.loads(await reader.readline())
    secrets: Mapping[str, str | None] = setup.get("keys") or {}
    if "keys" in setup:
        take_keys(secrets)
        setup = json.loads(await reader.readline())
    node = Node(setup, secrets) if "node" in setup else None
    if node is not None:
        setup = node.setup
    os.chdir(setup["working_dir"])
    # Each row has three, and several while it works.
    allow_many_files()
    request = Request.from_data(setup["request"])
    chosen = choose(request, output)
    if node is not None and chosen.plan.digest != setup["node"]["digest"]:
        hint = "See what the files and the environment of the node change: amplifier plan show"
        raise ConfigError("the plan on the node is not the one of the batch", hint=hint)
    sources = await open_sources(request, chosen)
    scoring = await _open_scoring(request, chosen, setup)
    options = [setup[name] for name in ("economy", "cache", "sealed")]
    schema, checks = read_schema(request), checks_of_run(request, chosen.plan)
    shared = Shared(request, chosen, sources, schema, checks, scoring, node, *options)
    worker = Worker(shared, output)
    worker.report({"ready": True})
    collect_garbage_rarely()
    while line := await reader.readline():
        worker.handle(json.loads(line))
    if node is not None:
        node.close()
    # Another process may continue its rows already: they end here as in a crash, and record nothing more.
    _end(0)


def main() -> None:
    """Serve until the input ends."""
    open_standard_streams()
    forbid_inspection()
    # A scheduler that ends a job signals all of its processes; the parent decides what happens to the rows.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda signum, frame: None)
    with claim_stdout() as output:
        try:
            run_loop(_serve(output))
        except Exception as error:
            outcome = to_outcome(error)
            print(f"{outcome.message}\n{outcome.hint or ''}".rstrip(), file=sys.stderr)
            _end(outcome.exit_code)


def _end(code: int) -> NoReturn:
    """End without waiting for rows, some of them in threads."""
    sys.stderr.flush()
    _exit(code)


if __name__ == "__main__":
    main()
