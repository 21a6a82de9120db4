"""The base of the engines: a pool of worker processes, each with many rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from amplifier_app.base.errors import AppError, ModuleError
from amplifier_batch.record.folder import Sealer
from amplifier_batch.workdirs import Workdir
from amplifier_support.environment import inherited_environment
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_batches import DeferredAnswer, DeferredRequest


class RowTask(NamedTuple):
    """A row to run.

    Attributes:
        id: The key of the row's run; see `Row.key`.
        prompt: Its prompt.
        fields: Its values, for checks.
        session: The id of its session.
        begun: Whether the session exists already, and is continued.
        workdir: Its working directory.
        run: Which of its row's runs it is, and which attempt at it: `1.1` at first.
        alone: Whether it needs a worker of its own, as it may be what killed its last one.
    """

    id: str
    prompt: str
    fields: dict[str, Any]
    session: str
    begun: bool
    workdir: Workdir
    run: str = "1.1"
    alone: bool = False


class Spent(NamedTuple):
    """A running row has cost this much so far, in US dollars, including earlier runs of its session.

    None if the price of its model is not known.
    """

    id: str
    cost: float | None


class Ended(NamedTuple):
    """A row has ended.

    Attributes:
        id: The row.
        result: The JSON result of its run.
        is_storage_error: True if nothing could be stored, as on a full disk.
        scores: The scores that its outcome depends on; see `amplifier_batch.scoring`.
    """

    id: str
    result: dict[str, Any]
    is_storage_error: bool = False
    scores: Sequence[Mapping[str, Any]] = ()


class Stopped(NamedTuple):
    """A row was stopped by `cancel` and can be continued."""

    id: str


RAY_WORKER_DIED, NODE_LOST = "its Ray worker died", "its Ray node was lost"
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", RAY_WORKER_DIED)


class Died(NamedTuple):
    """A worker died with these rows.

    Attributes:
        ids: The rows.
        how: The signal or exit code.
        began: Whether the rows had begun, so that one of them may be the cause.
    """

    ids: Sequence[str]
    how: str
    began: bool

    @property
    def may_be_from_outside(self) -> bool:
        """True for signals that the system or an operator sends, also if memory runs out."""
        return self.how in _FROM_OUTSIDE


class Asked(NamedTuple):
    """A running row requests an answer of its model that may arrive later.

    Attributes:
        id: The row.
        number: Names the request in its worker.
        request: The request.
    """

    id: str
    number: int
    request: DeferredRequest


class Reply(NamedTuple):
    """The reply to a row's request.

    Attributes:
        answer: The answer; None if the row is to send the request to its provider now.
        refused: Why there can be no answer; None if there can.
        batch: Our name for the batch with the answer.
    """

    answer: DeferredAnswer | None = None
    refused: str | None = None
    batch: str | None = None


Event = Spent | Ended | Stopped | Died | Asked


StopTime: TypeAlias = Literal["now", "after the tool", "after the request"]
"""When a row stops: a request that is stopped may be paid and not counted; so a limit waits for its end."""


class Engine(Protocol):
    """Runs rows, some of them at once."""

    async def submit(self, task: RowTask) -> None:
        """Start a row; the caller limits how many run at once."""
        ...

    async def event(self) -> Event:
        """Wait for the next event."""
        ...

    async def reply(self, asked: Asked, reply: Reply) -> None:
        """Send a row the reply to its request."""
        ...

    async def cancel(self, when: StopTime) -> None:
        """Stop all running rows.

        Args:
            when: When each row stops. A row without a running tool call or request stops now.
        """
        ...


_MANY_ROWS = 50
"""Number of ended rows after which there may be two workers for each processor."""

_STARTS = 10
"""Number of workers that may end before they are ready, one after the other."""


class Link(Protocol):
    """The connection to a worker process, which may run anywhere."""

    async def send(self, line: bytes) -> None:
        """Send a line; one to a worker that has died is lost."""
        ...

    async def receive(self) -> bytes | None:
        """Wait for the next line; None when the worker has died.

        Raises:
            AppError: No worker can be started.
        """
        ...

    async def wait_for_end(self) -> str:
        """Return the cause of the worker's death, such as `SIGKILL` or `exit code 1`."""
        ...

    async def close(self) -> None:
        """End the worker, if it has not died."""
        ...


class WorkerPool:
    """An `Engine` of worker processes, which start when they are needed.

    Args:
        capacity: Returns how many workers there may be now, besides those with one row alone; one starts when all
            others have a row.
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        connect: Starts a worker.
        rows_share: Whether a process can run several rows at a time; otherwise each row has its own.
        sealer: Seals the files of the rows.
    """

    def __init__(
        self,
        capacity: Callable[[], int],
        setup: Mapping[str, Any],
        connect: Callable[[], Awaitable[Link]],
        *,
        rows_share: bool,
        sealer: Sealer | None = None,
    ) -> None:
        self._sealer = sealer or Sealer()
        self._sealing: set[asyncio.Task[None]] = set()
        self._setup = json.dumps(setup).encode() + b"\n"
        self._connect = connect
        self._capacity = capacity
        self._rows_share = rows_share
        self._workers: list[_Worker] = []
        self._queue: deque[RowTask] = deque()
        self._idle: set[_Worker] = set()
        self._events: asyncio.Queue[Event | AppError] = asyncio.Queue()
        self._false_starts = 0
        self.ended = 0
        """The number of rows that have ended."""

    async def submit(self, task: RowTask) -> None:
        """See `Engine`."""
        self._queue.append(task)
        await self.distribute()

    async def distribute(self) -> None:
        """Give waiting rows to workers that can take them."""
        while self._queue and (worker := self._choose(self._queue[0])) is not None:
            await worker.submit(self._queue.popleft())

    def _choose(self, task: RowTask) -> _Worker | None:
        """The worker for a row; None if it has to wait."""
        shared = self._shared
        worker = min(shared, key=lambda one: len(one.rows), default=None)
        may_start = len(shared) < max(1, self._capacity())
        if task.alone or worker is None or (worker.rows and may_start):
            worker = _Worker(self, is_alone=task.alone)
            self._workers.append(worker)
        return worker if self._rows_share or not worker.rows else None

    @property
    def _shared(self) -> list[_Worker]:
        return [worker for worker in self._workers if not worker.is_alone]

    @property
    def rows(self) -> int:
        """The number of rows that run or wait for a worker."""
        return len(self._queue) + sum(len(worker.rows) for worker in self._workers)

    async def adjust(self) -> None:
        """Follow the capacity: start workers for waiting rows, and end those that have been idle since the last call."""
        idle = {worker for worker in self._shared if not worker.rows}
        ending, self._idle = idle & self._idle, idle
        for worker in ending:
            self._workers.remove(worker)
        await asyncio.gather(*(worker.close() for worker in ending))
        await self.distribute()

    async def event(self) -> Event:
        """See `Engine`.

        Raises:
            AppError: The workers failed to start, or cannot be started.
        """
        event = await self._events.get()
        if isinstance(event, AppError):
            raise event
        return event

    async def reply(self, asked: Asked, reply: Reply) -> None:
        """See `Engine`."""
        answer = None if reply.answer is None else [*reply.answer]
        message = {"reply": asked.number, **reply._asdict(), "answer": answer}
        for worker in self._workers:
            if asked.id in worker.rows:
                await worker.send(message)

    async def cancel(self, when: StopTime) -> None:
        """See `Engine`."""
        while self._queue:
            self._events.put_nowait(Stopped(self._queue.popleft().id))
        # All at once: a worker that ends meanwhile leaves the list.
        await asyncio.gather(*(worker.send({"stop": when}) for worker in self._workers))

    def seal(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        """Seal the files of a row, and let it go on."""
        task = asyncio.create_task(self._seal(worker, message))
        self._sealing.add(task)
        task.add_done_callback(self._sealing.discard)

    async def _seal(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        reply: dict[str, Any] = {"reply": message["ask"]}
        try:
            reply["problem"] = await self._sealer.seal(message["id"], [message["seal"]])
        except AppError as error:
            self.fail(error)
            return
        await worker.send(reply)

    async def close(self) -> None:
        """End the workers; rows that still run are lost."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def start(self) -> Link:
        """Start a worker."""
        link = await self._connect()
        await link.send(self._setup)
        return link

    def forget(self, worker: _Worker) -> None:
        """Remove a worker that has ended."""
        if worker in self._workers:
            self._workers.remove(worker)

    def put(self, event: Event) -> None:
        """Report an event of a worker."""
        self._false_starts = 0
        self.ended += isinstance(event, Ended)
        self._events.put_nowait(event)

    def fail(self, error: AppError) -> None:
        """End the batch with an error: for example, no worker can be started."""
        self._events.put_nowait(error)

    def report_death(self, rows: list[str], how: str, *, ready: bool) -> None:
        """Report that a worker has ended unexpectedly."""
        self._false_starts = 0 if ready else self._false_starts + (how != NODE_LOST)
        if self._false_starts >= _STARTS:
            hint = "See what they wrote in log.txt of the batch folder."
            self.fail(ModuleError(f"the workers failed to start ({how})", hint=hint))
        else:
            self._events.put_nowait(Died(rows, how, ready))


class _Worker:
    """One worker, started with its first row.

    Args:
        pool: Its pool.
        is_alone: Whether it has one row only, and ends with it.
    """

    def __init__(self, pool: WorkerPool, *, is_alone: bool) -> None:
        self._pool = pool
        self.is_alone = is_alone
        self._link: Link | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.rows: set[str] = set()

    async def submit(self, task: RowTask) -> None:
        self.rows.add(task.id)
        async with self._starting:
            if task.id not in self.rows:
                return  # The worker died while this row waited for its start.
            if self._link is None:
                self._link = await self._pool.start()
                self._reading = asyncio.create_task(self._read(self._link))
        await self.send({"row": task._asdict()})

    async def send(self, message: dict[str, Any]) -> None:
        if self._link is not None:
            await self._link.send(json.dumps(message).encode() + b"\n")

    async def _read(self, link: Link) -> None:
        ready = False
        try:
            while (line := await link.receive()) is not None:
                message = json.loads(line)
                ready = True
                if "seal" in message:
                    self._pool.seal(self, message)
                    continue
                event = _event(message)
                if event is None:
                    continue
                if not isinstance(event, Spent | Asked):
                    self.rows.discard(message["id"])
                self._pool.put(event)
                if self.is_alone and not self.rows:
                    await link.close()
                    self._pool.forget(self)
                    return
                await self._pool.distribute()
            how = await link.wait_for_end()
        except AppError as error:
            self._pool.fail(error)
            return
        self._link = None
        rows = sorted(self.rows)
        self.rows.clear()
        # Where it was, there may be no place for another one.
        self._pool.forget(self)
        self._pool.report_death(rows, how, ready=ready)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is None or self._reading is None:
            return
        self._reading.cancel()
        await link.close()


def _event(message: dict[str, Any]) -> Event | None:
    row_id = message.get("id")
    if row_id is None:
        return None
    if "result" in message:
        return Ended(row_id, message["result"], message["is_storage_error"], message["scores"])
    if "stopped" in message:
        return Stopped(row_id)
    if "ask" in message:
        return Asked(row_id, message["ask"], DeferredRequest(*message["request"]))
    return Spent(row_id, message["cost"])


WORKER = "amplifier_batch.execution.worker"

_MAX_LINE = 1 << 30
_END_SECONDS = 5.0


class WorkerProcess:
    """A `Link` to a worker process of this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, log: int, environment: Mapping[str, str]) -> WorkerProcess:
        """Start a process.

        Args:
            log: Descriptor for what the worker writes to stderr.
            environment: Its environment variables.
        """
        # -P: the working directory may contain anything.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            limit=_MAX_LINE,
            # Ctrl-C is for the parent, which decides what happens to the rows.
            start_new_session=True,
        )
        return cls(process)

    async def send(self, line: bytes) -> None:
        """See `Link`."""
        # A worker that has died is reported by the reading side.
        with contextlib.suppress(ConnectionError):
            self._stdin.write(line)
            await self._stdin.drain()

    async def receive(self) -> bytes | None:
        """See `Link`."""
        line = await self._stdout.readline()
        return line if line.endswith(b"\n") else None

    async def wait_for_end(self) -> str:
        """See `Link`."""
        code = await self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def close(self) -> None:
        """See `Link`."""
        self._stdin.close()  # A worker ends with its input.
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def local_engine(
    setup: Mapping[str, Any],
    log: int,
    environment: Mapping[str, str],
    *,
    rows_share: bool,
    sealer: Sealer | None = None,
) -> AsyncGenerator[WorkerPool]:
    """Run rows in processes of this machine.

    Args:
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        log: Descriptor for what workers and their modules write.
        environment: Further environment variables of the workers.
        rows_share: Whether a process can run several rows at a time; otherwise each row has its own.
        sealer: Seals the files of the rows.
    """

    def connect() -> Awaitable[WorkerProcess]:
        return WorkerProcess.start(log, {**inherited_environment(), **environment})

    def capacity() -> int:
        return local_capacity(pool.ended) if rows_share else sys.maxsize

    pool = WorkerPool(capacity, setup, connect, rows_share=rows_share, sealer=sealer)
    try:
        yield pool
    finally:
        await pool.close()


def local_capacity(ended: int) -> int:
    """Return how many workers there may be on this machine after so many rows have ended.

    A worker waits for the disk, too, while others can compute. That is worth the start of more workers than
    processors only in a batch of many rows.
    """
    return _cores() * (1 if ended < _MANY_ROWS else 2)


def _cores() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
