"""Collect the requests of all rows, send them in batches, and deliver the answers.

A batch is sent once every running row waits for an answer. A request that a batch leaves unanswered is
reported to the provider of its row as a temporary failure: its retry is in the next batch. Many rows wait, but
only a few work at a time: all answers of a batch arrive together, and each row then runs its tool calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from amplifier_app.runtime import describe
from amplifier_batch.economy.job import Job, RefusedBatchError
from amplifier_batch.engines.engine import Asked, Reply
from amplifier_batch.record.progress import SentBatch, SentRequests, sending
from amplifier_core.llm_errors import LLMError
from amplifier_support.provider_batches import UNANSWERED, DeferredAnswer, ProviderBatches

SETTLE_SECONDS = 0.3
"""How long all rows must have waited, in seconds, before a batch is sent: sub-agents send their requests one after the other."""

HOLD_SECONDS = 60.0
"""How long a request waits at most for rows that are still working, in seconds."""

_CLOSING_SECONDS = 10.0
_OVERHEAD = 256
"""Bytes of a request in a batch besides its body."""


class Broker:
    """The provider batches of one run.

    Args:
        services: The services, by `ProviderBatches.service`.
        sent: What was sent, also by earlier runs.
        note: Adds a record to the journal, and to `sent`.
        reply: Hands an answer to a row.
        fail: Called with an error that ends the run.
        changed: Called when there is progress.
        notice: Shows a line to the user.
        deadline: When answers are wanted at any price, in seconds since the epoch; None for never.
    """

    def __init__(
        self,
        services: Mapping[str, ProviderBatches],
        sent: SentRequests,
        note: Callable[[dict[str, Any]], None],
        reply: Callable[[Asked, Reply], Coroutine[Any, Any, None]],
        fail: Callable[[Exception], Coroutine[Any, Any, None]],
        changed: Callable[[], None],
        notice: Callable[[str], None],
        deadline: float | None = None,
    ) -> None:
        self._services = services
        self._past = sent
        self._note = note
        self._reply = reply
        self._fail = fail
        self._changed = changed
        self._notice = notice
        self._deadline = deadline
        self._questions: list[Asked] = []
        self._first = 0.0  # when the first of them came
        self._jobs: dict[str, Job] = {}
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._ready: deque[tuple[Asked, Reply]] = deque()
        self._running = 0
        self._workers = 0
        self._waiting: dict[str, set[int]] = {}  # the open requests of the rows that have any
        self._answered: set[tuple[str, str, str]] = set()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._is_closed = False
        if deadline is not None:
            self._spawn(self._cancel_at(deadline))

    # -- rows --------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Take a request of a row."""
        request, sent = asked.request, self._past
        self._waiting.setdefault(asked.id, set()).add(asked.number)
        if request.service not in self._services:
            message = "with --economy, agents can only use the providers of the plan"
            self._answer(asked, Reply(refused=message))
            return
        place = sent.place_of(asked.id, request)
        if place is not None and (asked.id, request.session, place.key) not in self._answered:
            job = self._jobs.get(place.key)
            if job is None:
                job = self._job(sent.batches[place.key])
                job.is_resumed = True
            job.waiting[place.number] = asked
            self._follow(job)
        elif self._is_over:
            self._answer(asked, Reply())
        else:
            self._add_request(asked)
        self._update_later()

    def forget(self, row_id: str) -> None:
        """Drop the requests of a row that no longer runs."""
        self._waiting.pop(row_id, None)
        self._ready = deque(one for one in self._ready if one[0].id != row_id)
        self._questions = [one for one in self._questions if one.id != row_id]
        for job in self._jobs.values():
            for number in [n for n, asked in job.waiting.items() if asked.id == row_id]:
                del job.waiting[number]
        self._answered = {one for one in self._answered if one[0] != row_id}

    def update(self, running: int, workers: int) -> None:
        """Set how many rows run now, and how many of them may work at a time."""
        self._running, self._workers = running, workers
        self._update_later()

    def is_waiting(self, row_id: str) -> bool:
        """Whether a row waits for an answer."""
        return row_id in self._waiting

    @property
    def waiting(self) -> int:
        """How many of the running rows wait for an answer."""
        return len(self._waiting)

    @property
    def open_batches(self) -> list[str]:
        """The provider's ids of the batches that rows wait for."""
        return [job.batch.id for job in self._jobs.values() if job.waiting and job.batch.id]

    def describe(self) -> str:
        """What rows wait for: `batch b_1: 3 of 200 done, 5 min`; empty if none waits."""
        jobs = [job for job in self._jobs.values() if job.waiting]
        if not jobs:
            return ""
        done, number = sum(job.done for job in jobs), sum(job.batch.number for job in jobs)
        name = f"{len(jobs)} batches" if len(jobs) > 1 else f"batch {jobs[0].batch.id or ''}"
        age = describe.duration(max(0.0, time.time() - min(job.batch.at for job in jobs)))
        trouble = next((f" ({job.trouble})" for job in jobs if job.trouble), "")
        return f"{name.strip()}: {done:,} of {number:,} done, {age}{trouble}"

    async def close(self) -> None:
        """Stop waiting for answers; batches go on at their provider."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sending:
            # An interrupted request would leave a batch whose id is unknown.
            await asyncio.wait(self._sending, timeout=_CLOSING_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sending -----------------------------------------------------------------------------

    def _add_request(self, asked: Asked) -> None:
        if not self._questions:
            self._first = asyncio.get_running_loop().time()
        self._questions.append(asked)

    def _update_later(self) -> None:
        """Send the requests once all rows wait and nothing has changed for a moment."""
        self._release()
        self._settled.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + SETTLE_SECONDS
        if self._running > len(self._waiting):
            due = (self._first if self._questions else loop.time()) + HOLD_SECONDS
        self._timer = loop.call_at(due, self._settle)

    def _settle(self) -> None:
        self._settled.set()
        questions, self._questions = self._questions, []
        groups: dict[tuple[str, str], list[Asked]] = {}
        for asked in questions:
            groups.setdefault((asked.request.service, asked.request.group), []).append(asked)
        for (name, _), group in groups.items():
            for part in _parts(group, self._services[name]):
                key = secrets.token_hex(8)
                task = self._spawn(self._send(key, part))
                # A row that asks again meanwhile does not look for a batch that is not there yet.
                self._followed[key] = task
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, key: str, questions: list[Asked]) -> None:
        request = questions[0].request
        batch = SentBatch(key, request.service, time.time(), len(questions))
        items = ((one.id, one.request.session, one.request.step) for one in questions)
        self._note(sending(batch, items))
        bodies = [one.request.body.encode() for one in questions]
        job = self._job(batch)
        # The bodies of a batch that was sent are not needed again.
        job.waiting = {
            number: one._replace(request=one.request._replace(body=""))
            for number, one in enumerate(questions)
        }
        self._changed()
        try:
            await job.send(request.group, bodies)
        except LLMError as error:
            if _is_refused(error):
                self._drop(job)
            raise
        del self._followed[key]
        self._follow(job)

    def _job(self, batch: SentBatch) -> Job:
        service = self._services[batch.service]
        job = self._jobs[batch.key] = Job(
            batch, service, self._note_id, self._changed, self._notice
        )
        if self._is_over:
            job.cancel()
        return job

    def _note_id(self, batch: SentBatch) -> None:
        self._note({"event": "sent", "key": batch.key, "id": batch.id})

    def _drop(self, job: Job) -> None:
        self._note({"event": "dropped", "key": job.batch.key})
        self._jobs.pop(job.batch.key, None)

    # -- answers -----------------------------------------------------------------------------

    def _follow(self, job: Job) -> None:
        """Wait for the batch of a job, unless a task already does."""
        task = self._followed.get(job.batch.key)
        if task is None or task.done():
            self._followed[job.batch.key] = self._spawn(self._wait_for(job))

    async def _wait_for(self, job: Job) -> None:
        others = {one.id for one in self._past.batches.values() if one.id}
        while True:
            if job.batch.id is None and not await job.find(others):
                self._ask_again(job)
                return
            try:
                await job.end()
            except RefusedBatchError:
                self._drop(job)
                raise
            if job.is_guess and (self._is_over or not job.waiting):
                self._leave_unanswered(job, dict(job.waiting))
                return
            if job.is_resumed:
                # Rows that continue their sessions request their answers one after the other.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HOLD_SECONDS):
                        await self._settled.wait()
            asked = dict(job.waiting)
            async for number, answer in job.answers():
                if (waits := job.waiting.pop(number, None)) is not None:
                    self._deliver(job, waits, answer)
            if job.is_guess:
                others.add(job.batch.id or "")
                job.batch = job.batch._replace(id=None)
                continue
            # A row that asked again after its answer was read needs it read again.
            self._leave_unanswered(job, asked)
            if not job.waiting:
                break
        self._note({"event": "answered", "key": job.batch.key})
        self._changed()

    def _leave_unanswered(self, job: Job, asked: Mapping[int, Asked]) -> None:
        """Report to those of the requests that still wait that the batch has no answer."""
        for number, one in asked.items():
            if job.waiting.get(number) is one:
                self._deliver(job, job.waiting.pop(number), None)

    def _ask_again(self, job: Job) -> None:
        """Send the requests of a batch that never got to the provider."""
        waiting = list(job.waiting.values())
        self._drop(job)
        for asked in waiting:
            if self._is_over:
                self._answer(asked, Reply())
            else:
                self._add_request(asked)
        self._update_later()

    def _deliver(self, job: Job, asked: Asked, answer: DeferredAnswer | None) -> None:
        request, key = asked.request, job.batch.key
        if answer is not None and answer.status == 200:
            # While its row runs here, another request of the session needs a new answer.
            self._answered.add((asked.id, request.session, key))
        else:
            self._past.forget(asked.id, request.session, key)
        unanswered = Reply() if self._is_over else Reply(UNANSWERED)
        self._answer(asked, unanswered if answer is None else Reply(answer, batch=key))

    def _answer(self, asked: Asked, reply: Reply) -> None:
        self._ready.append((asked, reply))
        self._update_later()

    def _release(self) -> None:
        """Send rows their answers; as many continue as may work at a time."""
        while self._ready and self._running - len(self._waiting) < max(1, self._workers):
            asked, reply = self._ready.popleft()
            numbers = self._waiting.get(asked.id, set())
            numbers.discard(asked.number)
            if not numbers:
                self._waiting.pop(asked.id, None)
            self._spawn(self._reply(asked, reply))

    # -- the deadline ------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return self._deadline is not None and time.time() >= self._deadline

    async def _cancel_at(self, deadline: float) -> None:
        await asyncio.sleep(max(0.0, deadline - time.time()))
        for job in self._jobs.values():
            job.cancel()
        questions, self._questions = self._questions, []
        for asked in questions:
            self._answer(asked, Reply())

    # -- tasks -------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run_or_fail(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_or_fail(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        # Any failure of a task ends the run; its rows can be continued.
        except Exception as error:
            await self._fail(error)


def _is_refused(error: LLMError) -> bool:
    """Whether the provider certainly did not take a batch; it may have, if its answer cannot be read."""
    return not error.retryable and 400 <= (error.status_code or 0) < 500


def _parts(questions: list[Asked], service: ProviderBatches) -> Iterator[list[Asked]]:
    """The requests in as many batches as the service's limits need."""
    part, size = list[Asked](), 0
    for asked in questions:
        length = len(asked.request.body.encode()) + _OVERHEAD
        if part and (len(part) == service.max_requests or size + length > service.max_bytes):
            yield part
            part, size = [], 0
        part.append(asked)
        size += length
    if part:
        yield part
