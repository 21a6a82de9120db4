"""A batch needs little memory for a row, however many there are."""

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import Location
from amplifier_app.base.outcome import OK
from amplifier_app.render.result import RunReport, result_object
from amplifier_batch.dispatch import Dispatcher, Limits
from amplifier_batch.engines.pool import Ended, Event, RowTask, StopTime
from amplifier_batch.input import PromptTemplate, Row
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import writing
from amplifier_batch.workdirs import Workdirs
from tests.support.thorough import Scale

MAX_BYTES_PER_ROW = 60
"""60 MB for 1,000,000 rows."""


class Instant:
    """An engine whose rows end at once, with a long answer."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._result = {**result_object(OK, RunReport()), "response": "x" * 2000}

    async def submit(self, task: RowTask) -> None:
        self._events.put_nowait(Ended(task.id, {**self._result, "session_id": task.session}))

    async def event(self) -> Event:
        await asyncio.sleep(0)  # The event loop removes timers that were cancelled.
        return await self._events.get()

    async def reply(self, asked: Any, reply: Any) -> None:
        raise NotImplementedError

    async def cancel(self, when: StopTime) -> None:
        raise NotImplementedError


async def test_a_row_that_has_ended_needs_little_memory(tmp_path: Path, scale: Scale) -> None:
    rows = scale(300, 10_000)
    batch = BatchFolder.create(tmp_path / "out", {"input": None, "rows": rows}, "")
    used: list[int] = []

    def inputs() -> Any:
        for number in range(1, rows + 1):
            if number in (rows // 3, rows):
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
            yield Row(number, Location("in", number), f"row-{number}", {"prompt": "p" * 2000})

    tracemalloc.start()
    try:
        with writing(batch) as writer:
            dirs = Workdirs("same", tmp_path, tmp_path / "work")
            prompts, limits = PromptTemplate(None), Limits(8)
            await Dispatcher(inputs(), prompts, dirs, Instant(), writer, lambda: limits).run()
    finally:
        tracemalloc.stop()
    assert (used[1] - used[0]) / (rows - rows // 3) < MAX_BYTES_PER_ROW
    assert batch.counts()[0].ended == rows
