"""The pool that engines share, with workers in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.errors import AppError, ModuleError
from amplifier_batch.engines import ray
from amplifier_batch.engines.pool import (
    NODE_LOST,
    RAY_WORKER_DIED,
    RowTask,
    Stopped,
    WorkerPool,
    local_capacity,
)
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

    def end(self, how: dict[str, Any] | None = None) -> None:
        self._lines.put_nowait(json.dumps({"id": self._row, **(how or {"stopped": True})}).encode())

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


async def test_many_ended_rows_are_worth_more_workers(tmp_path: Path) -> None:
    workers: list[Worker] = []

    async def connect() -> Worker:
        workers.append(Worker())
        return workers[-1]

    def capacity() -> int:
        return local_capacity(pool.ended)

    pool = WorkerPool(capacity, {}, connect, rows_share=True)
    workdir = Workdir("same", str(tmp_path), str(tmp_path))

    async def submit(number: int) -> None:
        await pool.submit(RowTask(f"r{number}", "go", {}, f"r{number}", False, workdir))

    few = capacity()
    for number in range(3 * few):
        await submit(number)
    assert len(workers) == few
    for number in range(3 * few, 60):
        workers[0].end({"result": {}, "is_storage_error": False, "scores": []})
        await pool.event()
        await submit(number)
    assert len(workers) == 2 * few
    await pool.close()


@pytest.mark.parametrize(("how", "is_failure"), [(NODE_LOST, False), ("exit code 1", True)])
async def test_workers_that_are_lost_with_their_node_before_they_are_ready_fail_no_batch(
    tmp_path: Path, how: str, *, is_failure: bool
) -> None:
    pool = WorkerPool(lambda: 1, {}, lambda: pytest.fail("none starts"), rows_share=False)
    for _ in range(20):
        pool.report_death(["r0"], how, ready=False)
    events = [pool.event() for _ in range(20)]
    results = await asyncio.gather(*events, return_exceptions=True)
    assert any(isinstance(result, ModuleError) for result in results) == is_failure


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


RAY = SimpleNamespace(
    exceptions=SimpleNamespace(
        RayActorError=RayActorError,
        ActorUnavailableError=ActorUnavailableError,
        RayError=RayActorError,
        RayTaskError=RuntimeError,
    ),
    kill=lambda actor: None,
)


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
    link = RayLink(RAY, actor, lambda send: pytest.fail("the node shares the disk"), 1, set())
    assert await link.receive() is None
    assert await link.wait_for_end() == how


async def test_a_ray_worker_waits_for_a_cpu_while_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Waiting:
        async def remote(self) -> Started:
            await free.wait()
            return Started()

    monkeypatch.setattr(ray, "_START_SECONDS", 0.05)
    free, running = asyncio.Event(), set[RayLink]()
    closed = Remote(RayActorError())

    def start(actor: SimpleNamespace) -> RayLink:
        return RayLink(RAY, actor, lambda send: pytest.fail("it shares the disk"), 1, running)

    first = start(SimpleNamespace(start=Remote(Started()), receive=Remote(b"{}"), close=closed))
    assert await first.receive() == b"{}"
    second = start(SimpleNamespace(start=Waiting(), receive=Remote(b"{}"), close=closed))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await second.receive()
    await first.close()
    with pytest.raises(AppError, match="Ray started no worker"):
        await second.receive()
    await second.close()


async def test_errors_of_a_cluster_that_cannot_be_asked_end_the_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "_WATCH_SECONDS", 0.01)

    async def adjust() -> None:
        raise RayActorError("no answer")

    async with await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0
    ) as server:
        port = server.sockets[0].getsockname()[1]
        node = {"NodeID": "n", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{port}", get_node_id=lambda: "n")
        cluster = SimpleNamespace(
            exceptions=RAY.exceptions, get_runtime_context=lambda: context, nodes=lambda: [node]
        )
        pool = WorkerPool(lambda: 1, {}, lambda: pytest.fail("none starts"), rows_share=False)
        await ray.watch(cluster, pool, adjust)
    with pytest.raises(AppError, match="the Ray cluster stopped"):
        await pool.event()
