"""Batch prices: collect the requests of all rows, send them to the batch services, and deliver the answers.

Each provider of the plan that has a batch service is mounted without a session. A batch is sent once every
running row waits for an answer. A request that a batch leaves unanswered is reported to the provider of its
row as a temporary failure: its retry is in the next batch. Many rows wait, but only a few work at a time:
all answers of a batch arrive together, and each row then runs its tool calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.plan.resolution import NO_PROVIDER, SET_UP
from amplifier_app.runtime import describe
from amplifier_app.runtime.provider_access import NotMounted, all_providers, mount_alone
from amplifier_batch.engines.pool import Asked, Reply
from amplifier_batch.record.progress import SentBatch, SentRequests, sending
from amplifier_core.llm_errors import InvalidRequestError, LLMError, NotFoundError
from amplifier_support.provider_batches import UNANSWERED, DeferredAnswer, ProviderBatches
from amplifier_support.provider_order import first_mounted

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.sources.resolver import AppModuleSourceResolver


KEPT_SECONDS = 28 * 24 * 3600.0
"""Seconds for which providers keep the answers of a batch, at least."""

_FIRST_PAUSE = 0.5
_MAX_PAUSE = 60.0
_SHARE_OF_AGE = 0.1
"""Seconds between two polls of a batch: this share of its age, within the two limits."""

_MAX_RETRY = 600.0
"""The longest time to wait that a provider may ask for, in seconds."""

_TRIES = 8
"""Number of requests in a row that may fail because the provider is unavailable, except polls of a
batch.
"""


class RefusedBatchError(InvalidRequestError):
    """The provider has refused a whole batch; none of its requests is answered or paid for."""


class Job:
    """A batch, and the requests that wait for its answers.

    Args:
        batch: The batch.
        service: Its service.
        record: Records the provider's id of the batch, before the batch is waited for.
        changed: Called when there is progress.
        notice: Shows a line to the user.

    Attributes:
        batch: The batch; its id is set once it is known.
        waiting: The requests that wait, by their number in the batch.
        done: How many are answered, as last reported by the provider.
        failures: How many requests to the provider in a row have failed and are tried again.
        is_guess: Whether the batch found in the provider's list may be another one.
        is_resumed: Whether an earlier run sent it.
    """

    def __init__(
        self,
        batch: SentBatch,
        service: ProviderBatches,
        record: Callable[[SentBatch], None],
        changed: Callable[[], None],
        notice: Callable[[str], None],
    ) -> None:
        self.batch = batch
        self.waiting: dict[int, Asked] = {}
        self.done = 0
        self.failures = 0
        self.is_guess = False
        self.is_resumed = False
        self._service = service
        self._record = record
        self._changed = changed
        self._notice = notice
        self._cancelling = asyncio.Event()
        self._is_cancelled = False

    async def send(self, group: str, bodies: Sequence[bytes]) -> None:
        """Send the batch.

        Raises:
            LLMError: The provider refused it, or was unavailable for too long.
        """
        while True:
            try:
                self._set_id(await self._service.submit(self.batch.key, group, bodies))
                return
            except LLMError as error:
                await self._recover(error)
            # The provider may have taken the batch, and only its answer was lost.
            if await self.find(()):
                return

    async def find(self, others: Collection[str]) -> bool:
        """Find the batch at the provider, if it got there.

        Args:
            others: Ids of batches that it is not.

        Raises:
            LLMError: The provider was unavailable for too long.
        """
        batch = self.batch
        while True:
            try:
                match = await self._service.find(batch.key, batch.number, batch.at, others)
            except LLMError as error:
                await self._recover(error)
                continue
            if match is not None:
                self.is_guess = not match.is_certain
                self._set_id(match.id)
            return match is not None

    async def end(self) -> None:
        """Wait until the batch has ended. After `cancel`, a batch that may be another one is not waited for.

        Raises:
            RefusedBatchError: The provider refused the batch.
            LLMError: The provider does not know it, or refused to show it.
        """
        begun = time.time()
        while True:
            if self.is_guess and self._cancelling.is_set():
                return
            try:
                state = await self._service.state(self.batch.id or "")
            except LLMError as error:
                if self._is_gone(error):
                    return
                await self._recover(error, max_failures=math.inf)
                continue
            if state.refused is not None:
                text = f"the provider refused batch {self.batch.id}: {state.refused}"
                raise RefusedBatchError(text)
            self.done = state.done
            self._reset_failures()
            if state.ended:
                return
            await self._cancel_if_asked()
            since = begun if self._is_cancelled else min(begun, self.batch.at)
            age = time.time() - since
            await self._pause(min(max(age * _SHARE_OF_AGE, _FIRST_PAUSE), _MAX_PAUSE))

    async def answers(self) -> AsyncGenerator[tuple[int, DeferredAnswer]]:
        """Yield the answers that requests wait for.

        Raises:
            LLMError: They cannot be read.
        """
        while self.waiting:
            try:
                async for number, answer in self._service.answers(
                    self.batch.id or "", self.batch.key
                ):
                    if self.is_guess:
                        self.is_guess = False
                        self._record(self.batch)
                    yield number, answer
                return
            except LLMError as error:
                if self._is_gone(error):
                    return
                await self._recover(error)

    def cancel(self) -> None:
        """End the batch now; answers that it already has are kept."""
        self._cancelling.set()

    async def _cancel_if_asked(self) -> None:
        if not self._cancelling.is_set() or self._is_cancelled:
            return
        try:
            await self._service.cancel(self.batch.id or "")
        except LLMError as error:
            if error.retryable:
                await self._recover(error, max_failures=math.inf)
                return
            # A batch that has just ended cannot be cancelled.
            self._notice(f"cannot cancel batch {self.batch.id}: {error}")
        self._is_cancelled = True

    def _is_gone(self, error: LLMError) -> bool:
        """Return True if the provider has removed the batch because of its age."""
        return isinstance(error, NotFoundError) and time.time() - self.batch.at > KEPT_SECONDS

    def _set_id(self, batch_id: str) -> None:
        self.batch = self.batch._replace(id=batch_id)
        # Another process would take a recorded batch for the right one.
        if not self.is_guess:
            self._record(self.batch)
        requests = describe.count(self.batch.number, "request")
        self._notice(f"waiting for batch {batch_id} with {requests}")
        self._reset_failures()

    def _reset_failures(self) -> None:
        self.failures = 0
        self._changed()

    async def _recover(self, error: LLMError, max_failures: float = _TRIES) -> None:
        """Wait after a temporary failure; raise any other, and one too many."""
        if not error.retryable or self.failures + 1 >= max_failures:
            raise error
        self.failures += 1
        if self.failures == 1:
            self._notice(f"{error}; trying again")
        self._changed()
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.failures, 10), _MAX_PAUSE)
        await self._pause(max(pause, min(error.retry_after or 0.0, _MAX_RETRY)))

    async def _pause(self, seconds: float) -> None:
        if self._cancelling.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cancelling.wait()  # A deadline ends the pause.


SETTLE_SECONDS = 0.3
"""Seconds that all rows must have waited before a batch is sent: sub-agents send their requests one
after the other.
"""

HOLD_SECONDS = 60.0
"""Maximum number of seconds that a request waits for rows that are still working."""

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
        seal: Returns when the records so far are sealed, for a batch at a URL.
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
        seal: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        self._services = services
        self._past = sent
        self._note = note
        self._seal = seal
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
        place = sent.find_place(asked.id, request)
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
        self._ready = deque(entry for entry in self._ready if entry[0].id != row_id)
        self._questions = [question for question in self._questions if question.id != row_id]
        for job in self._jobs.values():
            for number in [n for n, asked in job.waiting.items() if asked.id == row_id]:
                del job.waiting[number]
        self._answered = {entry for entry in self._answered if entry[0] != row_id}

    def update(self, running: int, workers: int) -> None:
        """Set how many rows run now, and how many of them may work at a time."""
        self._running, self._workers = running, workers
        self._update_later()

    def is_waiting(self, row_id: str) -> bool:
        """Return True if a row waits for an answer."""
        return row_id in self._waiting

    @property
    def waiting(self) -> int:
        """The number of running rows that wait for an answer."""
        return len(self._waiting)

    @property
    def open_batches(self) -> list[str]:
        """The provider's ids of the batches that rows wait for."""
        return [job.batch.id for job in self._jobs.values() if job.waiting and job.batch.id]

    def describe(self) -> str:
        """Describe the batches that rows wait for: `batch b_1: 3 of 200 done, 5 min`; empty if none
        waits.
        """
        jobs = [job for job in self._jobs.values() if job.waiting]
        if not jobs:
            return ""
        done, number = sum(job.done for job in jobs), sum(job.batch.number for job in jobs)
        name = f"{len(jobs)} batches" if len(jobs) > 1 else f"batch {jobs[0].batch.id or ''}"
        age = describe.duration(max(0.0, time.time() - min(job.batch.at for job in jobs)))
        trouble = " (trying again)" if any(job.failures for job in jobs) else ""
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
        items = (
            (question.id, question.request.session, question.request.step) for question in questions
        )
        self._note(sending(batch, items))
        if self._seal is not None:
            await self._seal()
        bodies = [question.request.body.encode() for question in questions]
        job = self._job(batch)
        # The bodies of a batch that was sent are not needed again.
        job.waiting = {
            number: call._replace(request=call.request._replace(body=""))
            for number, call in enumerate(questions)
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
        others = {batch.id for batch in self._past.batches.values() if batch.id}
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
        for number, call in asked.items():
            if job.waiting.get(number) is call:
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
    """Return True if the provider certainly did not take a batch; it may have, if its answer cannot be read."""
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


Services = dict[str, ProviderBatches]


@contextlib.asynccontextmanager
async def batch_services(
    plan: ResolvedPlan, sources: AppModuleSourceResolver
) -> AsyncGenerator[Services]:
    """Mount the plan's providers and return those with batches, by `ProviderBatches.service`.

    Raises:
        ConfigError: The provider that the plan uses first has no batches, or none is available.
    """
    async with mounted_providers(plan, sources) as (name, instances):
        services: Services = {}
        for instance in instances.values():
            if (batches := getattr(instance, "batches", None)) is not None:
                services[batches.service] = batches
        if getattr(instances[name], "batches", None) is None:
            raise ConfigError(
                f"provider {name!r} has no batches, which --economy needs",
                hint="Use provider-anthropic or provider-openai, or leave out --economy.",
            )
        yield services


@contextlib.asynccontextmanager
async def mounted_providers(
    plan: ResolvedPlan, sources: AppModuleSourceResolver
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Mount the plan's providers; yields the name of the one that is used first, and all by name.

    Raises:
        ConfigError: None is available.
    """
    async with contextlib.AsyncExitStack() as stack:
        instances: dict[str, Any] = {}
        missing: NotMounted | None = None
        for provider in all_providers(plan):
            if not provider.in_plan:
                continue
            try:
                instance = await stack.enter_async_context(
                    mount_alone(provider, sources, with_keys=True)
                )
            except NotMounted as error:
                missing = missing or error
                continue
            instances[provider.name] = instance
        name = first_mounted(instances, _preferred_provider(plan))
        if name is None:
            reasons = [entry.note for entry in plan.dropped if not entry.is_fallback]
            raise missing or ConfigError(NO_PROVIDER, hint="\n".join([*reasons, SET_UP]))
        yield name, instances


def _preferred_provider(plan: ResolvedPlan) -> str | None:
    """The provider that the plan's orchestrator asks first, if it names one."""
    orchestrator = plan.mount_plan()["session"]["orchestrator"]
    config = orchestrator.get("config") or {} if isinstance(orchestrator, dict) else {}
    return config.get("default_provider")
