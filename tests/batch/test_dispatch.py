"""Which rows run again, and when a batch stops."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import Location
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.render.result import RunReport, result_object
from amplifier_batch.dispatch import Dispatcher, Limits
from amplifier_batch.engines.pool import (
    NODE_LOST,
    RAY_WORKER_DIED,
    Asked,
    Died,
    Ended,
    Event,
    Reply,
    RowTask,
    StopTime,
)
from amplifier_batch.input import PromptTemplate, Row
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import writing
from amplifier_batch.workdirs import Workdirs

ONE_WORKER = Limits(1)


class Scripted:
    """An engine whose rows end as a function of the row and its run (from 1) says; None for a death."""

    def __init__(
        self,
        ends: Callable[[str, int], Ending | None],
        retry_after: int,
        how: str = "SIGKILL",
        *,
        is_disk_full: bool = False,
    ) -> None:
        self._ends = ends
        self._retry_after = retry_after
        self._how = how
        self._is_disk_full = is_disk_full
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self.runs: list[str] = []

    async def submit(self, task: RowTask) -> None:
        self.runs.append(task.id)
        ending = self._ends(task.id, self.runs.count(task.id))
        if ending is None:
            self._events.put_nowait(Died([task.id], self._how, began=True))
            return
        result: dict[str, Any] = result_object(Outcome(ending, "why"), RunReport())
        if ending is not Ending.OK:
            result["error"]["retry_after_ms"] = self._retry_after
        is_storage_error = ending is Ending.SESSION and self._is_disk_full
        ended = Ended(task.id, {**result, "session_id": task.session}, is_storage_error)
        self._events.put_nowait(ended)

    async def event(self) -> Event:
        return await self._events.get()

    async def reply(self, asked: Asked, reply: Reply) -> None:
        raise AssertionError("no row asks")

    async def cancel(self, when: StopTime) -> None:
        pass


async def run(
    folder: Path,
    rows: Sequence[str],
    ends: Callable[[str, int], Ending | None],
    limits: Limits = ONE_WORKER,
    changed: Callable[[], None] = lambda: None,
    retry_after: int = 0,
    broker: Any = None,
    how: str = "SIGKILL",
    is_disk_full: bool = False,
) -> tuple[Dispatcher, dict[str, str], list[str]]:
    facts = {"input": str(folder / "rows.jsonl"), "rows": len(rows)}
    batch = BatchFolder.create(folder / "out", facts, "")
    engine = Scripted(ends, retry_after, how, is_disk_full=is_disk_full)
    inputs = (
        Row(n, Location("rows.jsonl", n), name, {"prompt": "p"}) for n, name in enumerate(rows, 1)
    )
    with writing(batch) as writer:
        workdirs = Workdirs("same", folder, folder / "work")
        dispatcher = Dispatcher(
            inputs, PromptTemplate(None), workdirs, engine, writer, lambda: limits, changed
        )
        dispatcher.broker = broker
        async with asyncio.timeout(60):
            await dispatcher.run()
    ended = {result["row"]: result["outcome"] for result in batch.results()}
    return dispatcher, ended, engine.runs


async def test_a_session_that_another_process_still_has_is_tried_again(tmp_path: Path) -> None:
    def ends(row: str, run: int) -> Ending:
        return Ending.SESSION if (row, run) == ("a", 1) else Ending.OK

    dispatcher, ended, runs = await run(tmp_path, ["a", "b"], ends)
    assert (dispatcher.stopped, ended) == (None, {"a": "ok", "b": "ok"})
    assert runs.count("a") == 2


async def test_rows_do_not_end_while_no_session_can_be_saved(tmp_path: Path) -> None:
    dispatcher, ended, _ = await run(tmp_path, ["a", "b"], lambda row, run: Ending.SESSION)
    assert dispatcher.stopped is not None
    assert dispatcher.stopped.ending is Ending.SESSION
    assert ended == {}


async def test_a_damaged_session_ends_its_row_only(tmp_path: Path) -> None:
    def ends(row: str, run: int) -> Ending:
        return Ending.SESSION if row == "a" else Ending.OK

    dispatcher, ended, _ = await run(tmp_path, ["a", "b", "c"], ends, Limits(2))
    assert (dispatcher.stopped, ended) == (None, {"a": "session", "b": "ok", "c": "ok"})


async def test_a_full_disk_stops_the_batch_and_ends_no_row(tmp_path: Path) -> None:
    def ends(row: str, run: int) -> Ending:
        return Ending.SESSION if row == "b" else Ending.OK

    rows = ["a", "b", "c", "d"]
    dispatcher, ended, runs = await run(tmp_path, rows, ends, is_disk_full=True)
    assert dispatcher.stopped is not None
    assert dispatcher.stopped.ending is Ending.SESSION
    assert "b" not in ended
    # The disk may be full for a moment only.
    assert runs.count("b") == 3


async def test_rows_that_kill_their_workers_count_as_failed(tmp_path: Path) -> None:
    dispatcher, ended, _ = await run(
        tmp_path, ["a", "b"], lambda row, run: None, Limits(1, failures=1)
    )
    assert dispatcher.stopped is not None
    assert "1 row failed" in dispatcher.stopped.message
    assert len(ended) == 1


@pytest.mark.parametrize(
    ("how", "deaths", "grows", "outcome"),
    [
        ("exit code 3", 1, False, "ok"),
        ("exit code 3", 2, True, "error"),
        ("SIGSEGV", 2, False, "error"),
        ("SIGKILL", 5, False, "ok"),
        ("SIGKILL", 6, False, "error"),
        ("SIGKILL", 20, True, "ok"),
        (RAY_WORKER_DIED, 5, False, "ok"),
        (NODE_LOST, 20, False, "ok"),
    ],
)
async def test_deaths_from_outside_are_not_charged_to_the_row(
    tmp_path: Path, how: str, deaths: int, grows: bool, outcome: str
) -> None:
    transcript = tmp_path / "out" / "sessions" / "a" / "transcript.jsonl"

    def ends(row: str, run: int) -> Ending | None:
        if grows or run == 1:
            step = {"role": "assistant", "content": "", "metadata": {"usage": {"input_tokens": 7}}}
            transcript.parent.mkdir(parents=True, exist_ok=True)
            with transcript.open("a") as file:
                file.write(json.dumps(step) + "\n")
        return None if run <= deaths else Ending.OK

    _, ended, runs = await run(tmp_path, ["a"], ends, how=how)
    assert ended == {"a": outcome}
    assert len(runs) == deaths + (outcome == "ok")
    if outcome == "error":
        (line,) = BatchFolder(tmp_path / "out").results()
        steps = deaths if grows else 1
        assert (line["steps"], line["usage"]) == (steps, {"input_tokens": 7 * steps})


async def test_rows_whose_worker_died_run_at_the_same_time_each_in_its_own(tmp_path: Path) -> None:
    """While other rows go on."""
    rows = [f"r{n}" for n in range(20)]
    at_once: list[int] = []

    class Dying(Scripted):
        """Kills all rows of its first worker, and holds all others until no more come."""

        def __init__(self) -> None:
            super().__init__(lambda row, run: Ending.OK, 0)
            self.held: list[RowTask] = []

        async def submit(self, task: RowTask) -> None:
            self.held.append(task)

        async def event(self) -> Event:
            while self._events.empty():
                await asyncio.sleep(0)
                if self.held and not self.held[0].alone:
                    dead, self.held = self.held, []
                    return Died([task.id for task in dead], "SIGKILL", began=True)
                assert all(task.alone for task in self.held)
                at_once.append(len(self.held))
                await super().submit(self.held.pop())
            return await self._events.get()

    batch = BatchFolder.create(tmp_path / "out", {"input": "rows", "rows": len(rows)}, "")
    inputs = (Row(n, Location("rows", n), name, {"prompt": "p"}) for n, name in enumerate(rows, 1))
    with writing(batch) as writer:
        workdirs = Workdirs("same", tmp_path, tmp_path / "work")
        dispatcher = Dispatcher(
            inputs, PromptTemplate(None), workdirs, Dying(), writer, lambda: Limits(20)
        )
        async with asyncio.timeout(60):
            await dispatcher.run()
    assert {one["row"]: one["outcome"] for one in batch.results()} == dict.fromkeys(rows, "ok")
    assert max(at_once) == 16


class Waiting:
    """A broker with whose answers all rows wait."""

    waiting = 1

    def is_waiting(self, row_id: str) -> bool:
        return True

    def update(self, running: int, workers: int) -> None:
        pass

    def forget(self, row_id: str) -> None:
        pass


async def test_a_row_that_waits_while_its_worker_dies_runs_on_with_the_others(
    tmp_path: Path,
) -> None:
    metadata = tmp_path / "out" / "sessions" / "a" / "metadata.json"

    def ends(row: str, run: int) -> Ending | None:
        if row == "a":
            metadata.parent.mkdir(parents=True, exist_ok=True)
            metadata.write_text(json.dumps({"spent": {"cost_usd": "0.25"}}))
        return None if row == "a" or run == 1 else Ending.OK

    limits = Limits(3, waiting=3)
    _, ended, runs = await run(tmp_path, ["a", "b", "c"], ends, limits, broker=Waiting())
    assert ended == {"a": "error", "b": "ok", "c": "ok"}
    assert runs[:6] == ["a", "b", "c"] * 2
    # At last it is taken for the cause, and what it has cost counts.
    assert runs.count("a") == 7
    batch = BatchFolder(tmp_path / "out")
    assert [one["cost"] for one in batch.results() if one["row"] == "a"] == [{"usd": 0.25}]
    assert batch.counts()[0].cost == Decimal("0.25")


async def test_a_row_that_becomes_due_between_two_looks_is_started(tmp_path: Path) -> None:
    _, ended, runs = await run(
        tmp_path,
        ["a"],
        lambda row, run: Ending.UNAVAILABLE if run == 1 else Ending.OK,
        changed=lambda: time.sleep(0.05),
        retry_after=30,
    )
    assert (ended, runs) == ({"a": "ok"}, ["a", "a"])


async def test_changed_limits_apply_to_rows_that_are_running(tmp_path: Path) -> None:
    batch = BatchFolder.create(tmp_path / "out", {"input": "rows", "rows": 6}, "")
    rows = (Row(n, Location("rows", n), str(n), {"prompt": "p"}) for n in range(1, 7))
    engine, limits = Held(), [Limits(1)]
    with writing(batch) as writer:
        dispatcher = Dispatcher(
            rows,
            PromptTemplate(None),
            Workdirs("same", tmp_path, tmp_path / "work"),
            engine,
            writer,
            lambda: limits[-1],
        )
        running = asyncio.create_task(dispatcher.run())
        async with asyncio.timeout(60):
            await engine.holds(1)
            limits.append(Limits(3))
            await engine.holds(3)
            limits.append(Limits(3, failures=1))
            engine.end(Ending.PROVIDER)
            await engine.cancelled.wait()
            while not running.done():
                engine.end(Ending.OK)
                await asyncio.sleep(0.01)
            await running
    assert dispatcher.stopped is not None
    assert "1 row failed" in dispatcher.stopped.message
    assert batch.counts()[0].ended < 6


class Held:
    """An engine that ends its oldest row when `end` is called."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._rows: list[RowTask] = []
        self._submitted = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def submit(self, task: RowTask) -> None:
        self._rows.append(task)
        self._submitted.set()

    async def event(self) -> Event:
        return await self._events.get()

    async def reply(self, asked: Asked, reply: Reply) -> None:
        raise AssertionError("no row asks")

    async def cancel(self, when: StopTime) -> None:
        self.cancelled.set()

    async def holds(self, rows: int) -> None:
        """Wait until this many rows run."""
        while len(self._rows) < rows:
            self._submitted.clear()
            await self._submitted.wait()

    def end(self, ending: Ending) -> None:
        if not self._rows:
            return
        task = self._rows.pop(0)
        result = result_object(Outcome(ending, "why"), RunReport())
        self._events.put_nowait(Ended(task.id, {**result, "session_id": task.session}))
