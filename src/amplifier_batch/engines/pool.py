"""What the engines have in common: a pool of worker processes, each with many rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from amplifier_app.base.errors import AppError, ModuleError
from amplifier_batch.engines.engine import (
    Asked,
    Died,
    Ended,
    Event,
    Reply,
    RowTask,
    Spent,
    Stopped,
    StopTime,
)
from amplifier_support.provider_batches import DeferredRequest

_STARTS = 10
"""How many workers may end before they are ready, one after the other."""


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
        """How the worker died, such as `SIGKILL` or `exit code 1`."""
        ...

    async def close(self) -> None:
        """End the worker, if it has not died."""
        ...


class WorkerPool:
    """An `Engine` of worker processes, which start when they are needed.

    Args:
        max_workers: How many workers with several rows there may be; one starts when all others have a row.
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        connect: Starts a worker.
    """

    def __init__(
        self, max_workers: int, setup: Mapping[str, Any], connect: Callable[[], Awaitable[Link]]
    ) -> None:
        self._setup = json.dumps(setup).encode() + b"\n"
        self._connect = connect
        self._most = max_workers
        self._workers: list[_Worker] = []
        self._events: asyncio.Queue[Event | AppError] = asyncio.Queue()
        self._false_starts = 0

    async def submit(self, task: RowTask) -> None:
        """See `Engine`."""
        shared = [one for one in self._workers if not one.is_alone]
        worker = min(shared, key=lambda one: len(one.rows), default=None)
        if task.alone or worker is None or (worker.rows and len(shared) < self._most):
            worker = _Worker(self, is_alone=task.alone)
            self._workers.append(worker)
        await worker.submit(task)

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
        # All at once: a worker that ends meanwhile leaves the list.
        await asyncio.gather(*(worker.send({"stop": when}) for worker in self._workers))

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
        self._workers.remove(worker)

    def put(self, event: Event) -> None:
        """Report an event of a worker."""
        self._false_starts = 0
        self._events.put_nowait(event)

    def fail(self, error: AppError) -> None:
        """Report that no worker can be started."""
        self._events.put_nowait(error)

    def report_death(self, rows: list[str], how: str, *, ready: bool) -> None:
        """Report that a worker has ended unexpectedly."""
        self._false_starts = 0 if ready else self._false_starts + 1
        if self._false_starts >= _STARTS:
            hint = "See what they wrote in log.txt of the batch folder."
            self.fail(ModuleError(f"the workers failed to start ({how})", hint=hint))
        else:
            self._events.put_nowait(Died(rows, how, ready))


class _Worker:
    """One worker, started with its first row and again after its death.

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
            how = await link.wait_for_end()
        except AppError as error:
            self._pool.fail(error)
            return
        self._link = None
        rows = sorted(self.rows)
        self.rows.clear()
        if self.is_alone:
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
        return Ended(row_id, message["result"], message["is_storage_error"])
    if "stopped" in message:
        return Stopped(row_id)
    if "ask" in message:
        return Asked(row_id, message["ask"], DeferredRequest(*message["request"]))
    return Spent(row_id, message["cost"])
