"""The pool that engines share, with workers in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_batch.engines.pool import NODE_LOST, RAY_WORKER_DIED, RowTask, Stopped, WorkerPool
from amplifier_batch.engines.ray import RayLink, Started
from amplifier_batch.workdirs import Workdir
from tests.support.waiting import eventually


class Worker:
    """A worker that ends its row when it is asked to stop."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._row = ""
        self.is_closed = False

    async def send(self, line: bytes) -> None:
        message = json.loads(line)
        self.received.append(message)
        if "row" in message:
            self._row = message["row"]["id"]
        if "stop" in message:
            self.end()
            # The pipe of the next worker is full for a moment, so that this one ends meanwhile.
            await asyncio.sleep(0.01)

    def end(self) -> None:
        self._lines.put_nowait(json.dumps({"id": self._row, "stopped": True}).encode())

    async def receive(self) -> bytes | None:
        return await self._lines.get()

    async def wait_for_end(self) -> str:
        return "exit code 0"

    async def close(self) -> None:
        self.is_closed = True


async def test_a_stop_reaches_every_worker_although_some_end_meanwhile(tmp_path: Path) -> None:
    workers: list[Worker] = []

    async def connect() -> Worker:
        workers.append(Worker())
        return workers[-1]

    pool = WorkerPool(lambda: 2, {}, connect, rows_share=True)
    for number in range(4):
        key, workdir = f"r{number}", Workdir("same", str(tmp_path), str(tmp_path))
        await pool.submit(RowTask(key, "go", {}, key, False, workdir, alone=True))
    await pool.cancel("now")
    assert [worker.received[-1] for worker in workers] == [{"stop": "now"}] * 4
    await pool.close()


async def test_rows_with_processes_of_their_own_wait_for_capacity(tmp_path: Path) -> None:
    workers: list[Worker] = []
    capacity = 1

    async def connect() -> Worker:
        workers.append(Worker())
        return workers[-1]

    def rows_of(worker: Worker) -> list[str]:
        return [message["row"]["id"] for message in worker.received if "row" in message]

    pool = WorkerPool(lambda: capacity, {}, connect, rows_share=False)
    workdir = Workdir("same", str(tmp_path), str(tmp_path))
    for number in range(5):
        key = f"r{number}"
        await pool.submit(RowTask(key, "go", {}, key, False, workdir))
    assert [rows_of(worker) for worker in workers] == [["r0"]]
    capacity = 3
    await pool.adjust()
    assert [rows_of(worker) for worker in workers] == [["r0"], ["r1"], ["r2"]]
    workers[1].end()
    assert await pool.event() == Stopped("r1")
    await eventually(lambda: rows_of(workers[1]) == ["r1", "r3"])
    assert pool.rows == 4
    # What still waits is stopped at once; a worker that stays idle ends.
    await pool.cancel("now")
    stopped = [await pool.event() for _ in range(4)]
    assert {*stopped} == {Stopped(key) for key in ("r0", "r2", "r3", "r4")}
    await pool.adjust()
    assert not any(worker.is_closed for worker in workers)
    await pool.adjust()
    assert all(worker.is_closed for worker in workers)
    await pool.submit(RowTask("r5", "go", {}, "r5", False, workdir))
    assert rows_of(workers[3]) == ["r5"]
    await pool.close()


class RayActorError(Exception):
    """As Ray raises it for a call to an actor that has died."""

    def __init__(self, text: str = "the actor died", *, preempted: bool = False) -> None:
        super().__init__(text)
        self.preempted = preempted


class Remote:
    """A method of an actor."""

    def __init__(self, result: Any) -> None:
        self._result = result

    async def remote(self, *arguments: Any) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class ActorUnavailableError(RayActorError):
    """As Ray raises it while an actor cannot be reached."""


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (RayActorError(preempted=True), NODE_LOST),
        (RayActorError("The actor died because its node has died."), NODE_LOST),
        (RayActorError(), RAY_WORKER_DIED),
        (ActorUnavailableError(), NODE_LOST),
    ],
    ids=["pre-empted node", "dead node", "actor", "node out of reach"],
)
async def test_a_lost_ray_node_is_told_from_an_actor_that_died(
    error: RayActorError, how: str
) -> None:
    """With a double of Ray; `tests/e2e/test_batch_ray.py` has the real one."""
    actor = SimpleNamespace(start=Remote(Started()), receive=Remote(error), close=Remote(error))
    exceptions = SimpleNamespace(
        RayActorError=RayActorError,
        ActorUnavailableError=ActorUnavailableError,
        RayError=RayActorError,
        RayTaskError=RuntimeError,
    )
    ray = SimpleNamespace(exceptions=exceptions, kill=lambda actor: None)
    link = RayLink(ray, actor, lambda send: pytest.fail("the node shares the disk"), 1)
    assert await link.receive() is None
    assert await link.wait_for_end() == how
