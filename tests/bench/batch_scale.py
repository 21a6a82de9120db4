"""What a batch of very many rows costs apart from running them; prints JSON.

    python -m tests.bench.batch_scale RUNS FOLDER [REPEAT]

The runs end at once, so that only the dispatcher, the journal and the results are measured.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.render.result import RunReport, result_object
from amplifier_batch.dispatch import Dispatcher, Limits
from amplifier_batch.engines.pool import Asked, Ended, Event, Reply, RowTask, StopTime
from amplifier_batch.input import PromptTemplate, Row, read_rows
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import writing
from amplifier_batch.statistics.comparison import compare
from amplifier_batch.statistics.summary import totals
from amplifier_batch.table import Table, as_csv
from amplifier_batch.workdirs import Workdirs


class Instant:
    """An engine whose rows end at once; a third of the runs fail if there are several of each row."""

    def __init__(self, repeat: int) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._repeat = repeat

    async def submit(self, task: RowTask) -> None:
        fails = self._repeat > 1 and hash(task.id) % 3 == 0
        outcome = Outcome(Ending.CHECK_FAILED, "failed") if fails else OK
        result = {**result_object(outcome, RunReport()), "session_id": task.session}
        self._events.put_nowait(Ended(task.id, {**result, "response": "x" * 500}))

    async def event(self) -> Event:
        await asyncio.sleep(0)  # The event loop removes timers that were cancelled.
        return await self._events.get()

    async def reply(self, asked: Asked, reply: Reply) -> None:
        pass

    async def cancel(self, when: StopTime) -> None:
        pass


def peak_memory() -> float:
    """The most memory that this process has used, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the rows, then look at them as `status`, `resume` and `report` do."""
    runs, folder = int(sys.argv[1]), Path(sys.argv[2])
    repeat = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rows = runs // repeat
    source = folder / "rows.jsonl"
    with source.open("w") as file:
        for number in range(rows):
            file.write(json.dumps({"id": f"row-{number}", "prompt": "x" * 100}) + "\n")
    facts = {"input": str(source), "input_digest": "", "rows": rows, "repeat": repeat}
    batch = BatchFolder.create(folder / "out", facts, "")
    found: dict[str, Any] = {}

    def inputs() -> Iterator[Row]:
        for row in read_rows(source):
            for number in range(1, repeat + 1):
                yield row if repeat == 1 else row._replace(run=number)

    def status() -> dict[str, Any]:
        counts, running = batch.counts()
        return totals(batch, counts, running=running)

    def run(limit: int) -> None:
        with writing(batch) as writer:
            left = (row for row in inputs() if not writer.progress.of(row.key).outcome)
            limits = Limits(8, failures=None)
            head = (row for row, _ in zip(left, range(limit), strict=False))
            engine, dirs = Instant(repeat), Workdirs("same", folder, folder / "work")
            dispatcher = Dispatcher(
                head, PromptTemplate(None), dirs, engine, writer, lambda: limits
            )
            asyncio.run(dispatcher.run())

    run(runs // 100)
    before, start = peak_memory(), time.process_time()
    run(runs)
    found["us_per_row"] = (time.process_time() - start) / runs * 1e6
    found["growth_mb"] = peak_memory() - before
    found["peak_mb"] = peak_memory()
    start = time.process_time()
    run(runs)
    found["resume_s"] = time.process_time() - start
    gc.disable()  # as in the command line
    looks: list[tuple[str, Callable[[], object]]] = [
        ("status_ms", status),
        ("results_s", lambda: sum(len(line) for line in as_csv(Table(batch)))),
        ("compare_s", lambda: compare(batch, batch)),
    ]
    for name, look in looks:
        start = time.process_time()
        look()
        found[name] = (time.process_time() - start) * (1000 if name.endswith("ms") else 1)
    counts, _ = batch.counts()
    print(json.dumps({**found, "ended": counts.ended}))


if __name__ == "__main__":
    main()
