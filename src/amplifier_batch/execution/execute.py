"""Run the rows of a batch that have not ended, and say how it went."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import AppError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.run.request import Request
from amplifier_app.runtime import describe
from amplifier_batch.dispatch import OF_EVERY_ROW, Dispatcher, Limits, Stop
from amplifier_batch.engines.pool import WorkerPool, local_engine
from amplifier_batch.engines.ray import ray_engine
from amplifier_batch.execution.setup import lacks_price, open_broker, read_limits
from amplifier_batch.input import PromptTemplate, Row, read_batch_rows
from amplifier_batch.options import BatchOptions
from amplifier_batch.record.folder import RESULTS, WORK, BatchFolder, has_begun
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.writer import BatchWriter, writing
from amplifier_batch.statistics.summary import (
    cost_in_words,
    describe_time_left,
    failed_outcomes,
    in_words,
    make_forecast,
    outcome_of_batch,
)
from amplifier_batch.status_line import StatusLine
from amplifier_batch.workdirs import Workdirs

_BAR_WIDTH = 20


def execute(
    folder: BatchFolder, request: Request, options: BatchOptions, *, quiet: bool
) -> Outcome:
    """Run what is left of a batch.

    Args:
        folder: The batch.
        request: The plan and the options of every row.
        options: Those of the command line; the batch keeps them.
        quiet: Whether to show no progress.

    Raises:
        AppError: The batch cannot go on; what has ended is saved.
    """
    with writing(folder) as writer:
        folder.change(options.settings())
        writer.reopen_answered()
        try:
            return run_loop(_execute(writer, request, quiet))
        except AppError as error:
            error.hint = error.hint and error.hint.replace("FOLDER", shlex.quote(folder.shown))
            raise


async def _execute(writer: BatchWriter, request: Request, quiet: bool) -> Outcome:
    line = _ProgressLine(writer.folder, quiet=quiet)
    stopping: list[Any] = []

    def stop(immediate: bool) -> None:
        why = Ending.TERMINATED if interrupts.terminated else Ending.INTERRUPTED
        line.say("stopping the running rows; 'amplifier batch resume' continues them")
        if dispatcher.broker is not None and (open_batches := dispatcher.broker.open_batches):
            line.say(f"{', '.join(open_batches)} continues; 'resume' gets its answers")
        writer.folder.sealer.hurry()
        when = "now" if immediate else "after the tool"
        coroutine = dispatcher.stop(Stop(why, why.value), when)
        stopping.append(asyncio.get_running_loop().create_task(coroutine))

    def changed() -> None:
        line.show_batch(dispatcher, writer)

    writer.folder.sealer.notice = line.notice
    if writer.folder.facts.get("engine") == "ray" and not quiet:
        to_stderr("connecting to Ray")
    async with dispatching(writer, request, changed, line.notice) as dispatcher:
        line.start_clock()
        try:
            with Interrupts(stop) as interrupts:
                await dispatcher.run()
        finally:
            line.end()
    outcome = _outcome(writer, dispatcher)
    if outcome.ending is Ending.OK:
        line.finish(writer)
    return outcome


@contextlib.asynccontextmanager
async def dispatching(
    writer: BatchWriter,
    request: Request,
    changed: Callable[[], None] = lambda: None,
    notice: Callable[[str], None] = lambda text: None,
    *,
    rows: Iterator[Row] | None = None,
) -> AsyncGenerator[Dispatcher]:
    """Provide the dispatcher of the rows of a batch that have not ended; its workers end with the
    context.

    Args:
        writer: The batch.
        request: The plan and the options of every row.
        changed: Called after every change.
        notice: Shows a line to the user.
        rows: The rows to run; by default all that have not ended, in the order of the input.

    Raises:
        AppError: The providers of a batch at batch prices are unavailable.
    """
    folder, facts = writer.folder, writer.folder.facts
    setup = {
        "request": request.as_data(),
        "working_dir": facts["working_dir"],
        "economy": bool(facts.get("economy")),
        "scores": facts.get("scores") or [],
        "cache": bool(facts.get("cache")),
        "sealed": folder.sealer.is_remote,
    }
    workdirs = Workdirs(facts["workdir"], Path(facts["working_dir"]), folder.path / WORK)
    async with _engine(writer, setup, workdirs) as engine:
        dispatcher = Dispatcher(
            _unfinished_rows(facts, writer) if rows is None else rows,
            PromptTemplate(facts["prompt"]),
            workdirs,
            engine,
            writer,
            lambda: _limits_now(folder),
            changed,
        )
        is_unfinished = writer.progress.counts.ended < folder.runs
        if dispatcher.cost_option and is_unfinished and await lacks_price(request):
            await dispatcher.stop_without_price()
        if not setup["economy"]:
            yield dispatcher
            return
        async with open_broker(request, writer, dispatcher, engine, changed, notice):
            yield dispatcher


def _engine(
    writer: BatchWriter, setup: Mapping[str, Any], workdirs: Workdirs
) -> AbstractAsyncContextManager[WorkerPool]:
    """Return the engine that runs the rows."""
    folder, facts = writer.folder, writer.folder.facts
    environment = {"AMPLIFIER_SESSIONS": str(folder.sessions)}
    # The working directory belongs to the process.
    shares = workdirs.is_shared
    if facts.get("engine") != "ray":
        return local_engine(setup, writer.log, environment, rows_share=shares, sealer=folder.sealer)
    return ray_engine(setup, writer, environment, workdirs)


def _limits_now(folder: BatchFolder) -> Limits:
    """The limits in batch.json, which `amplifier batch set` may have changed."""
    folder.refresh()
    return read_limits(folder.facts)


def _unfinished_rows(facts: Mapping[str, Any], writer: BatchWriter) -> Iterator[Row]:
    if writer.progress.counts.ended == writer.folder.runs:
        return iter(())  # Without reading the input, which takes seconds if it is large.
    return (row for row in read_batch_rows(facts) if writer.progress.of(row.key).outcome is None)


def _outcome(writer: BatchWriter, dispatcher: Dispatcher) -> Outcome:
    folder, counts = writer.folder, writer.progress.counts
    stopped = dispatcher.stopped
    if stopped is not None:
        if stopped.ending in OF_EVERY_ROW and not has_begun(folder.path):
            return Outcome(stopped.ending, stopped.message, stopped.hint)
        done = f"{counts.ended} of {folder.runs} {folder.unit}s have ended"
        hint = stopped.hint or ""
        if "FOLDER" not in hint:
            hint = f"{hint}\nContinue with: amplifier batch resume FOLDER".lstrip()
        hint = hint.replace("FOLDER", shlex.quote(folder.shown))
        between = "\n" if "\n" in stopped.message else "; "
        return Outcome(stopped.ending, f"{stopped.message}{between}{done}", hint)
    return outcome_of_batch(folder, counts)


class _ProgressLine(StatusLine):
    """The progress of a batch."""

    def __init__(self, folder: BatchFolder, *, quiet: bool) -> None:
        super().__init__(folder.runs, quiet=quiet)
        self._unit = f"{folder.unit}s"
        self._started = time.monotonic()
        self._ended_before: int | None = None

    def start_clock(self) -> None:
        """Start to estimate the time that is left."""
        self._started = time.monotonic()

    def show_batch(self, dispatcher: Dispatcher, writer: BatchWriter) -> None:
        """Show the progress of the batch."""
        ended = writer.progress.counts.ended
        if self._ended_before is None:
            self._ended_before = ended
        self.show(ended, lambda: self._text(dispatcher, writer, ended, time.monotonic()))

    def notice(self, text: str) -> None:
        """Write a separate line, unless progress is not shown."""
        if not self.quiet:
            self.say(text)

    def finish(self, writer: BatchWriter) -> None:
        """Report that all rows have passed."""
        if self.quiet:
            return
        counts, seconds = (
            writer.progress.counts,
            describe.duration(time.monotonic() - self._started),
        )
        cost = cost_in_words(counts.cost, counts.cached)
        parts = [
            f"{self.rows:,} of {self.rows:,} {self._unit} passed",
            seconds,
            *filter(None, [cost]),
        ]
        where = writer.folder.shown
        if not writer.folder.sealer.is_remote:
            where = str(Path(where) / RESULTS)
        to_stderr(f"{' · '.join(parts)} · {where}")

    def _text(self, dispatcher: Dispatcher, writer: BatchWriter, ended: int, now: float) -> str:
        failed = failed_outcomes(writer.progress.counts)
        waits = "" if dispatcher.broker is None else dispatcher.broker.describe()
        running = waits or f"{dispatcher.running} running"
        bar = _bar(ended / self.rows) if self.redraws else ""
        parts = [f"{bar}{ended:,} of {self.rows:,} {self._unit}", running]
        rate = (ended - (self._ended_before or 0)) / max(now - self._started, 0.001)
        if rate:
            parts.append(_rate_text(rate, self._unit))
        if failed:
            parts.append(f"failed: {in_words(failed)}")
        if parked := writer.progress.counts.outcomes[WAITING]:
            parts.append(f"{parked:,} waiting for approval")
        if cost := cost_in_words(dispatcher.cost, writer.progress.counts.cached):
            parts.append(cost)
        left = (self.rows - ended) / rate if rate else None
        if forecast := make_forecast(writer.progress.counts, self.rows, None):
            forecast = forecast._replace(seconds_left=left)
            parts.append(f"{self.rows:,} {self._unit}: {forecast.text}")
        elif left is not None:
            parts.append(f"{describe_time_left(left)} left")
        return " · ".join(parts)


def _bar(share: float) -> str:
    full = int(share * _BAR_WIDTH)
    return f"{'█' * full}{'░' * (_BAR_WIDTH - full)} "


def _rate_text(rate: float, unit: str) -> str:
    """A rate in rows per second, or per minute or hour if that is less than one."""
    seconds, name = next(
        (size for size in ((1, "s"), (60, "min")) if rate * size[0] >= 1), (3600, "h")
    )
    return f"{rate * seconds:,.3g} {unit}/{name}"
