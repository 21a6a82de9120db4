"""What a batch of very many rows costs apart from running them; prints JSON.

    python -m tests.bench.batch_scale ROWS FOLDER

The rows end at once, so that only the dispatcher, the journal and the results are measured.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from amplifier_app.base.outcome import OK
from amplifier_app.batch.dispatch import Dispatcher, Limits
from amplifier_app.batch.engines.engine import Asked, Ended, Event, Reply, RowTask
from amplifier_app.batch.input.prompts import PromptTemplate
from amplifier_app.batch.input.rows import read_rows
from amplifier_app.batch.record.folder import BatchFolder
from amplifier_app.batch.record.writer import writing
from amplifier_app.batch.workdirs import Workdirs
from amplifier_app.render.result import RunReport, result_object


class Instant:
    """An engine whose rows end at once."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def submit(self, task: RowTask) -> None:
        result = {**result_object(OK, RunReport()), "session_id": task.session}
        self._events.put_nowait(Ended(task.id, {**result, "response": "x" * 500}))

    async def event(self) -> Event:
        return await self._events.get()

    async def reply(self, asked: Asked, reply: Reply) -> None:
        pass

    async def cancel(self, *, immediate: bool) -> None:
        pass


def most_memory() -> float:
    """The most memory that this process has used, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the rows, then look at them as `status`, `resume` and `report` do."""
    rows, folder = int(sys.argv[1]), Path(sys.argv[2])
    source = folder / "rows.jsonl"
    with source.open("w") as file:
        for number in range(rows):
            file.write(json.dumps({"id": f"row-{number}", "prompt": "x" * 100}) + "\n")
    batch = BatchFolder.create(folder / "out", {"input": str(source), "rows": rows}, "")
    found: dict[str, Any] = {}

    def run(limit: int) -> None:
        with writing(batch) as writer:
            left = (row for row in read_rows(source) if not writer.progress.of(row.id).outcome)
            limits = Limits(8, failures=None)
            head = (row for row, _ in zip(left, range(limit), strict=False))
            engine, dirs = Instant(), Workdirs("same", folder, folder / "work")
            dispatcher = Dispatcher(
                head, PromptTemplate(None), dirs, engine, writer, lambda: limits
            )
            asyncio.run(dispatcher.run())

    run(rows // 100)
    before, start = most_memory(), time.process_time()
    run(rows)
    found["us_per_row"] = (time.process_time() - start) / rows * 1e6
    found["growth_mb"] = most_memory() - before
    start = time.process_time()
    run(rows)
    found["resume_s"] = time.process_time() - start
    for name, look in (("status_ms", batch.counts), ("results_s", lambda: list(batch.results()))):
        start = time.process_time()
        look()
        found[name] = (time.process_time() - start) * (1000 if name.endswith("ms") else 1)
    counts, _ = batch.counts()
    print(json.dumps({**found, "ended": counts.ended}))


if __name__ == "__main__":
    main()
