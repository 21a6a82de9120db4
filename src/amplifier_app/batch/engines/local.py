"""The local engine: some processes, each with the plan loaded, and many rows in each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from amplifier_app.base.errors import ModuleError
from amplifier_app.batch.engines.engine import Died, Ended, Event, RowTask, Spent, Stopped

WORKER = "amplifier_app.commands.batch.worker"

_LONGEST_LINE = 1 << 30
_STARTS = 10
"""How many workers in a row may end before they are ready."""


class LocalPool:
    """Worker processes on this machine, which start when they are needed.

    Args:
        most: How many processes there may be; one starts when all others have a row.
        setup: What each worker needs to know; see `amplifier_app.commands.batch.worker`.
        log: Descriptor that gets what workers write to stdout and stderr.
        environment: Environment variables of the workers.
    """

    def __init__(
        self, most: int, setup: Mapping[str, Any], log: int, environment: Mapping[str, str]
    ) -> None:
        self._setup = json.dumps(setup).encode() + b"\n"
        self._log = log
        self._environment = {**os.environ, **environment}
        self._most = most
        self._workers: list[_Worker] = []
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._false_starts = 0

    async def submit(self, task: RowTask) -> None:
        """See `Engine`."""
        worker = min(self._workers, key=lambda one: len(one.rows), default=None)
        if worker is None or (worker.rows and len(self._workers) < self._most):
            worker = _Worker(self)
            self._workers.append(worker)
        await worker.submit(task)

    async def event(self) -> Event:
        """See `Engine`.

        Raises:
            ModuleError: The workers failed to start.
        """
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def cancel(self, *, immediate: bool) -> None:
        """See `Engine`."""
        for worker in self._workers:
            await worker.tell({"stop": "now" if immediate else "after the tool"})

    async def close(self) -> None:
        """End the workers; rows that still run are lost."""
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def start(self) -> asyncio.subprocess.Process:
        """Start the process of a worker."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # The working directory may contain anything.
            "-m",
            WORKER,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            limit=_LONGEST_LINE,
            # Ctrl-C is for the parent, which decides what happens to the rows.
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(self._setup)
        return process

    def put(self, event: Event) -> None:
        """Report an event of a worker."""
        self._false_starts = 0
        self._events.put_nowait(event)

    def died(self, rows: list[str], code: int, *, ready: bool) -> None:
        """Report the end of a worker that was not asked to end."""
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._false_starts = 0 if ready else self._false_starts + 1
        if self._false_starts >= _STARTS:
            hint = "See what they wrote in log.txt of the batch folder."
            self._events.put_nowait(ModuleError(f"the workers failed to start ({how})", hint=hint))
        else:
            self._events.put_nowait(Died(rows, how, ready))


class _Worker:
    """One worker process, started with its first row and again after its death."""

    def __init__(self, pool: LocalPool) -> None:
        self._pool = pool
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.rows: set[str] = set()

    async def submit(self, task: RowTask) -> None:
        self.rows.add(task.id)
        async with self._starting:
            if self._process is None:
                self._process = await self._pool.start()
                self._reading = asyncio.create_task(self._read(self._process))
        await self.tell({"row": task._asdict()})

    async def tell(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        # A worker that has died is reported by the reading side.
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(message).encode() + b"\n")
            await process.stdin.drain()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        ready = False
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                break
            message = json.loads(line)
            ready = True
            event = _event(message)
            if event is None:
                continue
            if not isinstance(event, Spent):
                self.rows.discard(message["id"])
            self._pool.put(event)
        code = await process.wait()
        self._process = None
        rows = sorted(self.rows)
        self.rows.clear()
        self._pool.died(rows, code, ready=ready)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None or self._reading is None:
            return
        self._reading.cancel()
        if process.stdin is not None:
            process.stdin.close()  # A worker ends with its input.
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _event(message: dict[str, Any]) -> Event | None:
    row_id = message.get("id")
    if row_id is None:
        return None
    if "result" in message:
        return Ended(row_id, message["result"])
    if "stopped" in message:
        return Stopped(row_id)
    return Spent(row_id, message["cost"])
