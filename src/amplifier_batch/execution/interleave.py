"""Run two plans over the same rows side by side, and stop as soon as one is clearly better.

Rows run in an order of their own, by a hash of their ids, so that the first of them are a sample of the input. Neither plan
gets ahead of the other by more than the rows that run at once. Only the rows up to the first one that has not ended in both
count: rows that fail may end sooner than others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from decimal import Decimal

from amplifier_app.base.outcome import Ending
from amplifier_app.base.signals import Interrupts
from amplifier_app.commands.run.request import Request
from amplifier_app.runtime import describe
from amplifier_batch.dispatch import Dispatcher, Stop, stop_for_price
from amplifier_batch.execution.execute import dispatching
from amplifier_batch.execution.setup import lacks_price
from amplifier_batch.input import Row, read_batch_rows
from amplifier_batch.record.journal import Record
from amplifier_batch.record.results import read_passed
from amplifier_batch.record.writer import BatchWriter
from amplifier_batch.statistics.anytime import CONFIDENCE, DECIDED, Anytime, place
from amplifier_batch.status_line import StatusLine


class Interleaving:
    """Runs two batches.

    Args:
        writers: The batches, of the same input.
        requests: The plan and the options of the rows of each.
        until_decided: Whether to stop as soon as one is clearly better.
        max_cost: US dollars for both together; None for no limit.
        ahead: How many rows one may be ahead of the other.
        quiet: Whether to show no progress.

    Attributes:
        rows: The rows, in the order in which they run.
        compared: How many of them count: it is known whether they passed in both, and all before them have ended.
        is_decided: True if one batch is clearly better.
        stopped: Why the comparison stopped before its last row; None if it did not, or because it was decided.
    """

    def __init__(
        self,
        writers: Sequence[BatchWriter],
        requests: Sequence[Request],
        *,
        until_decided: bool,
        max_cost: Decimal | None,
        ahead: int,
        quiet: bool,
    ) -> None:
        rows = read_batch_rows(writers[0].folder.facts)
        self.rows = sorted(rows, key=lambda row: place(row.id))
        self.sides = [_Side(self, writer, ahead) for writer in writers]
        self._requests = requests
        self._until_decided = until_decided
        self._max_cost = max_cost
        self._anytime = Anytime()
        self.compared = 0
        self._ended = 0
        self._stopping: set[asyncio.Task[None]] = set()
        self._line = StatusLine(len(self.rows), quiet=quiet)
        self.stopped: Stop | None = None
        self.is_decided = False
        for side in self.sides:
            for result in side.writer.folder.results():
                side.note(result)
            side.writer.on_result = side.end
        self._compare()

    async def run(self) -> None:
        """Run the rows until all have ended, or the comparison stops.

        Raises:
            AppError: A worker cannot be started, or the folder cannot be written.
        """

        def interrupt(immediate: bool) -> None:
            why = Ending.TERMINATED if interrupts.terminated else Ending.INTERRUPTED
            self.stop(Stop(why, why.value), now=immediate)

        a, b = self.sides
        async with (
            dispatching(a.writer, self._requests[0], self.changed, rows=a) as a.dispatcher,
            dispatching(b.writer, self._requests[1], self.changed, rows=b) as b.dispatcher,
        ):
            if self._max_cost is not None:
                for side, request in zip(self.sides, self._requests, strict=True):
                    if side.dispatcher is not None and await lacks_price(request):
                        await side.dispatcher.stop_without_price()
                self.changed()
            tasks = [asyncio.create_task(side.run()) for side in self.sides]
            try:
                with Interrupts(interrupt) as interrupts:
                    await asyncio.gather(*tasks)
            finally:
                self._line.end()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, *self._stopping, return_exceptions=True)

    @property
    def saved(self) -> int:
        """The number of rows that did not have to run, because the comparison was decided."""
        return len(self.rows) - self._ended if self.is_over and self.stopped is None else 0

    @property
    def is_over(self) -> bool:
        """True if no row may start any more."""
        return self.stopped is not None or (self.is_decided and self._until_decided)

    def stop(self, why: Stop | None, *, now: bool = False) -> None:
        """Stop both batches; rows that run can be continued."""
        self.stopped = self.stopped or why
        when = "now" if now else "after the request"
        reason = why or Stop(Ending.OK, DECIDED)
        for side in self.sides:
            side.wake.set()
            if side.dispatcher is not None:
                task = asyncio.get_running_loop().create_task(side.dispatcher.stop(reason, when))
                self._stopping.add(task)

    def ended(self) -> None:
        """Compare the rows that have ended in both, after one has ended."""
        self._compare()
        if self.is_over and not self._stopping:
            self.stop(None)
        for side in self.sides:
            side.wake.set()

    def _compare(self) -> None:
        a, b = self.sides
        while self._ended < min(a.prefix, b.prefix) and not (
            self.is_decided and self._until_decided
        ):
            key = self.rows[self._ended].key
            self._ended += 1
            before, after = a.passed[key], b.passed[key]
            if before is not None and after is not None:
                self._anytime.add(float(after) - float(before))
                self.compared += 1
                self.is_decided = self._anytime.is_decided

    @property
    def cost(self) -> Decimal:
        """US dollars of both batches so far, including the rows that run."""
        costs = [side.dispatcher.cost for side in self.sides if side.dispatcher is not None]
        return sum(costs, Decimal(0))

    def changed(self) -> None:
        """Check the costs and show the progress."""
        limit = self._max_cost
        if limit is not None and not self.is_over and self.cost >= limit:
            used = f"${self.cost:.2f} of ${limit} used (--max-cost)"
            self.stop(Stop(Ending.BUDGET, used))
        found = [side.dispatcher for side in self.sides if side.dispatcher is not None]
        if limit is not None and not self.is_over and any(each.lacks_price for each in found):
            self.stop(stop_for_price("--max-cost"))
        self._line.show(self._ended, self._describe)

    def _describe(self) -> str:
        parts = [f"{self._ended:,} of {len(self.rows):,} rows"]
        if self.compared:
            verdict = self._anytime.verdict()
            ends = f"{verdict.low * 100:+.1f} … {verdict.high * 100:+.1f}"
            parts.append(f"B - A {verdict.mean * 100:+.1f} points ({ends}, {CONFIDENCE:.0%})")
        if self.cost:
            parts.append(describe.cost(self.cost))
        return " · ".join(parts)


class _Side(Iterator[Row]):
    """One of the batches; as an iterator, the rows that it may start now.

    Attributes:
        writer: The batch.
        dispatcher: Runs its rows; None before.
        passed: Key of a row that has ended → whether it passed; None if that is unknown.
        prefix: How many rows have ended before the first one that has not.
        wake: Set when it may go on.
    """

    def __init__(self, both: Interleaving, writer: BatchWriter, ahead: int) -> None:
        self._both = both
        self._ahead = ahead
        self._next = 0
        self.writer = writer
        self.dispatcher: Dispatcher | None = None
        self.passed: dict[str, bool | None] = {}
        self.prefix = 0
        self.wake = asyncio.Event()

    def __next__(self) -> Row:
        """Raise StopIteration also while the other batch is behind; it may be called again later."""
        rows = self._both.rows
        while self._next < len(rows) and rows[self._next].key in self.passed:
            self._next += 1
        if not self._may_start:
            raise StopIteration
        self._next += 1
        return rows[self._next - 1]

    @property
    def _may_start(self) -> bool:
        behind = min(side.prefix for side in self._both.sides)
        return (
            not self._both.is_over
            and self._next < len(self._both.rows)
            and self._next < behind + self._ahead
        )

    async def run(self) -> None:
        """Run the rows of this batch, waiting for the other one where it is ahead."""
        assert self.dispatcher is not None
        while True:
            await self.dispatcher.run()
            stopped = self.dispatcher.stopped
            if stopped is not None and not self._both.is_over:
                # A hint about the batch alone would be about half of the comparison.
                is_of_batch = "FOLDER" in (stopped.hint or "")
                self._both.stop(stopped._replace(hint=None) if is_of_batch else stopped)
            if self._both.is_over or self._next >= len(self._both.rows):
                return
            self.wake.clear()
            while not self._may_start and not self._both.is_over:
                await self.wake.wait()
                self.wake.clear()

    def note(self, result: Record) -> None:
        """Count a row that has ended."""
        self.passed[self.writer.folder.build_key(result)] = read_passed(result)
        rows = self._both.rows
        while self.prefix < len(rows) and rows[self.prefix].key in self.passed:
            self.prefix += 1

    def end(self, result: Record) -> None:
        """Count a row that ends now."""
        self.note(result)
        self._both.ended()
