"""Decide which row runs next, until every row has ended or the batch must stop."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.render.result import RunReport, result_object
from amplifier_app.runtime import describe
from amplifier_app.runtime.budget_limits import SET_PRICES, describe_reached
from amplifier_batch.economy import Broker
from amplifier_batch.engines.pool import (
    NODE_LOST,
    Asked,
    Died,
    Ended,
    Engine,
    RowTask,
    Spent,
    Stopped,
    StopTime,
)
from amplifier_batch.input import PromptTemplate, Row, build_session_id
from amplifier_batch.record.folder import approve_command
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.results import result_line
from amplifier_batch.record.writer import BatchWriter
from amplifier_batch.scores import store_score
from amplifier_batch.statistics.summary import make_forecast
from amplifier_batch.workdirs import Workdirs
from amplifier_support.named_tuple import NamedTuple

_OF_THE_PLAN = (Ending.USAGE, Ending.CONFIGURATION, Ending.MODULE)
"""Outcomes that every row has, unless another one has passed."""

OF_EVERY_ROW = (*_OF_THE_PLAN, Ending.AUTHENTICATION)
"""Outcomes for which the batch stops at the first row."""

_TRIES: Mapping[str, float] = {Ending.UNAVAILABLE.value: math.inf, Ending.SESSION.value: 3}
"""Attempts for what may pass: a busy provider; a session that a dying worker has, or a full disk.
"""

_MAX_WAIT = 60.0
_TICK_SECONDS = 0.5
"""Seconds between saving the sums and reading the limits."""

_MAX_DEATHS = 5
"""Worker deaths after which a row that waits, or makes no progress, is treated as their cause."""

_MAX_ALONE = 16
"""Maximum number of rows whose workers died that have a worker of their own at a time."""

DEFAULT_TRIES = 5
"""Number of times a row may find the provider unavailable before it ends with that."""


class Limits(NamedTuple):
    """When a batch stops.

    Attributes:
        workers: How many rows run at a time, not counting those that wait for an answer at batch prices.
        max_cost: US dollars for all rows together, over all runs of the batch.
        max_forecast: US dollars that the whole batch may cost by the forecast of its first rows.
        failures: How many rows may fail, as a number of rows; None for any.
        tries: How often a row may find the provider unavailable.
        waiting: At batch prices, how many rows may run or wait for an answer.
    """

    workers: int
    max_cost: Decimal | None = None
    max_forecast: Decimal | None = None
    failures: int | None = None
    tries: int = DEFAULT_TRIES
    waiting: int = 0


class Stop(NamedTuple):
    """Why a batch stops before its end."""

    ending: Ending
    message: str
    hint: str | None = None


def stop_for_price(option: str) -> Stop:
    """That the limit of an option cannot be enforced, because the price of the model is unknown."""
    why = f"cannot enforce {option}: no price known for this model"
    return Stop(Ending.BUDGET, why, f"{SET_PRICES}, or run the rows without {option}.")


class Dispatcher:
    """Runs the rows of a batch.

    Attributes:
        stopped: Why the batch stops; None while it does not.
        broker: Gets answers at batch prices; None if rows ask their providers themselves.

    Args:
        rows: The rows that have not ended, in order.
        prompts: Makes their prompts.
        workdirs: Where they run.
        engine: Runs them.
        writer: Records what happens.
        limits: When to stop; updated about every second.
        changed: Called after every change.
    """

    def __init__(
        self,
        rows: Iterator[Row],
        prompts: PromptTemplate,
        workdirs: Workdirs,
        engine: Engine,
        writer: BatchWriter,
        limits: Callable[[], Limits],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._rows = rows
        self._prompts = prompts
        self._workdirs = workdirs
        self._engine = engine
        self._writer = writer
        self._read_limits = limits
        self._limits = limits()
        self._changed = changed
        self._running: dict[str, Row] = {}
        self._costs: dict[str, Decimal] = {}
        self._waiting: list[tuple[float, int, Row]] = []  # heap of rows that try again later
        self._suspects: deque[Row] = deque()
        self._died: set[str] = set()
        self._deaths: Counter[str] = Counter()  # that the row need not have caused
        self._sizes: dict[str, int] = {}  # of the row's session at the last of them
        self._tries: Counter[str] = Counter()
        self._passed_before: dict[str, int] = {}  # when the row was tried first
        self._crowd = float(self._limits.workers)
        self._pause = 0.0
        self._looked = 0.0  # when no row could be started last
        self._failures = 0
        self._ticked = time.monotonic()
        self._when: StopTime = "now"
        self.stopped: Stop | None = None
        self.broker: Broker | None = None
        self.lacks_price = False

    @property
    def running(self) -> int:
        """The number of rows that run now."""
        return len(self._running)

    @property
    def cost(self) -> Decimal:
        """US dollars of all rows so far, including those that run."""
        return self._writer.progress.counts.cost + sum(self._costs.values(), Decimal(0))

    async def stop(self, why: Stop, when: StopTime = "after the request") -> None:
        """Start no more rows, and stop those that run."""
        self.stopped = self.stopped or why
        if self.broker is not None and when == "after the request":
            # An answer may take hours, and is not lost.
            when = "after the tool"
        self._when = when
        await self._engine.cancel(when)

    async def run(self) -> None:
        """Run rows until all have ended, or the batch is stopped and no row runs any more."""
        await self._fill()
        while self._running or (not self.stopped and (self._waiting or self._suspects)):
            await self._wait()
            await self._fill()
            if self.broker is not None:
                self.broker.update(len(self._running), max(1, int(self._crowd)))
            self._changed()
            if time.monotonic() - self._ticked > _TICK_SECONDS:
                self._writer.save_status()
                await self._take_limits()
                self._ticked = time.monotonic()

    async def _take_limits(self) -> None:
        """Apply limits that were changed while the batch runs."""
        before, self._limits = self._limits, self._read_limits()
        if self._limits.workers != before.workers:
            self._crowd = float(self._limits.workers)
        if self._limits != before:
            await self._check_cost()
            await self._check_forecast()
            await self._check_failures()

    # Starting rows

    async def _fill(self) -> None:
        while not self.stopped and (row := self._next()) is not None:
            await self._start(row)

    def _next(self) -> Row | None:
        self._looked = now = time.monotonic()
        working = len(self._running) - (0 if self.broker is None else self.broker.waiting)
        if now < self._pause or working >= max(1, int(self._crowd)):
            return None
        if self.broker is not None and len(self._running) >= self._limits.waiting:
            return None
        if self._waiting and self._waiting[0][0] <= now:
            return heapq.heappop(self._waiting)[2]
        if self._suspects and len(self._died & self._running.keys()) < _MAX_ALONE:
            return self._suspects.popleft()
        return next(self._rows, None)

    async def _start(self, row: Row) -> None:
        state = self._writer.progress.of(row.key)
        attempt = state.attempt if state.begun else state.attempt + 1
        session = build_session_id(row.id, attempt, row.run)
        prompt, workdir = self._prompts.render(row), self._workdirs.of(row, session)
        self._writer.claim(row.key, attempt, session)
        self._running[row.key] = row
        alone = row.key in self._died
        run = f"{max(1, row.run)}.{attempt}"
        task = RowTask(row.key, prompt, row.fields, session, state.begun, workdir, run, alone)
        await self._engine.submit(task)
        if self.stopped:  # while the worker was starting
            await self._engine.cancel(self._when)

    # Events of the engine

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(self._next_due()):
                event = await self._engine.event()
        except TimeoutError:
            return
        if isinstance(event, Spent):
            await self._handle_cost(event)
        elif isinstance(event, Ended):
            await self._handle_end(event)
        elif isinstance(event, Asked):
            if self.broker is not None and event.id in self._running:
                self.broker.ask(event)
        elif isinstance(event, Stopped):
            self._release(event.id, "stopped")
        else:
            await self._all_died(event)

    def _next_due(self) -> float:
        """When to continue without an event, by the clock of the event loop."""
        times = (self._pause, *(due for due, _, _ in self._waiting[:1]))
        # Includes rows that have become due since.
        later = [] if self.stopped else [due for due in times if due > self._looked]
        left = min((due - time.monotonic() for due in later), default=_TICK_SECONDS)
        return min(left, _TICK_SECONDS) + asyncio.get_running_loop().time()

    async def _handle_end(self, event: Ended) -> None:
        result, row = event.result, self._running[event.id]
        outcome = result["outcome"]
        if self._tries[row.key] + 1 < min(self._limits.tries, _TRIES.get(outcome, 1)):
            self._try_later(row, result)
            return
        if event.is_storage_error or self._is_of_every_row(row, outcome):
            self._release(row.key, outcome)
            error = result["error"] or {}
            ending = Ending(outcome)
            await self.stop(Stop(ending, error.get("message") or outcome, error.get("hint")))
            return
        self._forget(row.key)
        if outcome == WAITING:
            # A run's own command names the session, which is not one of the user's sessions.
            command = approve_command(self._writer.folder, row.id)
            result["error"]["hint"] = f"Answer with: {command} --allow (or --deny)"
        line = self._line(row, result)
        # First, so that a row that has ended has them; the scores of a row that runs again do not count.
        for score in event.scores:
            store_score(self._writer.folder.path, line, score)
        self._writer.end(line)
        if result["steps"] and result["cost"] is None:
            await self.stop_without_price()
        await self._check_forecast()
        if outcome in (Ending.OK.value, WAITING):
            self._crowd = min(self._crowd + 1 / self._crowd, self._limits.workers)
            return
        await self._count_failure()

    async def _count_failure(self) -> None:
        self._failures += 1
        await self._check_failures()

    async def _check_failures(self) -> None:
        most = self._limits.failures
        if most is not None and self._failures >= most:
            counted = describe.count(self._failures, "row")
            await self.stop(Stop(Ending.ERROR, f"stopped because {counted} failed (--stop-after)"))

    def _is_of_every_row(self, row: Row, outcome: str) -> bool:
        """Return True if the other rows would end like this, too."""
        if outcome == Ending.SESSION.value:
            return self._passed == self._passed_before[row.key]
        return Ending(outcome) in OF_EVERY_ROW and not (
            Ending(outcome) in _OF_THE_PLAN and self._passed
        )

    @property
    def _passed(self) -> int:
        return self._writer.progress.counts.outcomes[Ending.OK.value]

    def _line(self, row: Row, result: dict[str, Any]) -> dict[str, Any]:
        attempt = self._writer.progress.of(row.key).attempt
        return result_line(row.id, row.number, attempt, result, max(1, row.run))

    def _try_later(self, row: Row, result: dict[str, Any]) -> None:
        """Wait as long as the provider asks for, and send fewer rows at once."""
        self._tries[row.key] += 1
        self._passed_before.setdefault(row.key, self._passed)
        after = (result["error"] or {}).get("retry_after_ms")
        wait = min(2.0 ** self._tries[row.key], _MAX_WAIT) if after is None else after / 1000
        due = time.monotonic() + wait
        self._release(row.key, result["outcome"])
        heapq.heappush(self._waiting, (due, row.number, row))
        if self.broker is not None:
            return  # The other rows are in the next batch, too.
        self._pause = max(self._pause, due)
        self._crowd = max(1.0, self._crowd / 2)

    async def _all_died(self, event: Died) -> None:
        """Run the rows of a dead worker again, each in its own; a row that kills its worker again ends."""
        for row_id in event.ids:
            row = self._running[row_id]
            if not event.began or event.how == NODE_LOST or self._was_waiting(row_id):
                self._release(row_id, "died")
                heapq.heappush(self._waiting, (time.monotonic(), row.number, row))
                continue
            session = build_session_id(row.id, self._writer.progress.of(row_id).attempt, row.run)
            if row_id not in self._died or self.stopped or self._was_killed(row_id, session, event):
                self._release(row_id, "died")
                self._died.add(row_id)
                self._suspects.append(row)
                continue
            self._forget(row_id)
            times = (
                f"{_MAX_DEATHS} times without progress" if event.may_be_from_outside else "twice"
            )
            message = f"its worker died {times} while it ran ({event.how})"
            outcome = Outcome(Ending.ERROR, message, "See log.txt in the folder of the batch.")
            totals = self._writer.folder.read_totals(session)
            more = {"session_id": session, **totals, "notices": []}
            self._writer.end(self._line(row, {**result_object(outcome, RunReport()), **more}))
            await self._count_failure()

    def _was_waiting(self, row_id: str) -> bool:
        """Return True if a row whose worker died waited for an answer, so that it cannot be the cause."""
        if self.broker is None or not self.broker.is_waiting(row_id):
            return False
        self._deaths[row_id] += 1
        return self._deaths[row_id] <= _MAX_DEATHS

    def _was_killed(self, row_id: str, session: str, event: Died) -> bool:
        """Return True if a worker was killed from outside: the row would be killed again at the same step."""
        if not event.may_be_from_outside:
            return False
        size = self._writer.folder.measure_conversation(session)
        if size > self._sizes.setdefault(row_id, size):
            self._deaths[row_id] = 0
        self._sizes[row_id] = size
        self._deaths[row_id] += 1
        return self._deaths[row_id] < _MAX_DEATHS

    def _release(self, row_id: str, why: str) -> None:
        cost = self._costs.get(row_id)
        self._forget(row_id)
        self._writer.release(row_id, why, cost)

    def _forget(self, row_id: str) -> None:
        self._running.pop(row_id)
        self._costs.pop(row_id, None)
        if self.broker is not None:
            self.broker.forget(row_id)

    async def _handle_cost(self, event: Spent) -> None:
        if event.cost is None:
            await self.stop_without_price()
            return
        recorded = self._writer.progress.recorded.get(event.id, Decimal(0))
        self._costs[event.id] = Decimal(str(event.cost)) - recorded
        await self._check_cost()

    @property
    def cost_option(self) -> str | None:
        """The option that limits the cost, if there is one."""
        limits = (
            (self._limits.max_cost, "--max-cost"),
            (self._limits.max_forecast, "--max-forecast"),
        )
        return next((option for limit, option in limits if limit is not None), None)

    async def stop_without_price(self) -> None:
        """Stop if the cost is limited, because the price of the model is unknown."""
        self.lacks_price = True
        if option := self.cost_option:
            await self.stop(stop_for_price(option))

    async def _check_cost(self) -> None:
        limit = self._limits.max_cost
        if limit is None or self.stopped or self.cost < limit:
            return
        used = describe_reached("max_cost", float(limit), float(self.cost))
        hint = "Raise it with: amplifier batch resume FOLDER --max-cost DOLLARS"
        await self.stop(Stop(Ending.BUDGET, f"{used} (--max-cost)", hint))

    async def _check_forecast(self) -> None:
        """Stop if the batch will cost too much even at the lower end of the forecast."""
        limit = self._limits.max_forecast
        if limit is None or self.stopped:
            return
        forecast = make_forecast(self._writer.progress.counts, self._writer.folder.runs, None)
        if forecast is None or forecast.low is None or forecast.low <= limit:
            return
        why = f"the batch will cost about {forecast.cost_text}, more than ${limit} (--max-forecast)"
        hint = "Go on all the same: amplifier batch resume FOLDER --max-forecast none"
        await self.stop(Stop(Ending.BUDGET, why, hint))
