"""The local engine: worker processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from amplifier_batch.engines.pool import WorkerPool

WORKER = "amplifier_batch.execution.worker"

_LONGEST_LINE = 1 << 30
_END_SECONDS = 5.0


class WorkerProcess:
    """A `Link` to a worker process of this machine.

    Args:
        log: Descriptor for what the worker writes to stderr.
        environment: Its environment variables.
    """

    def __init__(self, log: int, environment: Mapping[str, str]) -> None:
        self._log = log
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
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

    async def send(self, line: bytes) -> None:
        """See `Link`."""
        stdin = self._running.stdin
        assert stdin is not None
        # A worker that has died is reported by the reading side.
        with contextlib.suppress(ConnectionError):
            stdin.write(line)
            await stdin.drain()

    async def receive(self) -> bytes | None:
        """See `Link`."""
        stdout = self._running.stdout
        assert stdout is not None
        line = await stdout.readline()
        return line if line.endswith(b"\n") else None

    async def wait_for_end(self) -> str:
        """See `Link`."""
        code = await self._running.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def close(self) -> None:
        """See `Link`."""
        process = self._running
        assert process.stdin is not None
        process.stdin.close()  # A worker ends with its input.
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process


@contextlib.asynccontextmanager
async def local_engine(
    setup: Mapping[str, Any], log: int, environment: Mapping[str, str], *, rows_share: bool
) -> AsyncGenerator[WorkerPool]:
    """Run rows in processes of this machine.

    Args:
        setup: What each worker needs to know; see `amplifier_batch.execution.worker`.
        log: Descriptor for what workers and their modules write.
        environment: Further environment variables of the workers.
        rows_share: Whether a process can run several rows at a time; otherwise each row has its own.
    """

    async def connect() -> WorkerProcess:
        process = WorkerProcess(log, {**os.environ, **environment})
        await process.start()
        return process

    pool = WorkerPool(_cores() if rows_share else sys.maxsize, setup, connect)
    try:
        yield pool
    finally:
        await pool.close()


def _cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
