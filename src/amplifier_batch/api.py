"""Batches that are run from Python."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from amplifier_app.api import (
    Approve,
    Plan,
    RowAnswer,
    check_approve,
    start_task,
    to_answer,
)
from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.file_writing import make_private_folder, write_private
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.run.choose import Chosen
from amplifier_app.commands.run.request import Request
from amplifier_batch.dispatch import Stop
from amplifier_batch.execution.execute import dispatching
from amplifier_batch.execution.setup import new_facts, require_same
from amplifier_batch.input import compute_digest, has_absolute_ids
from amplifier_batch.options import BatchOptions, RowOptions, local_folder
from amplifier_batch.record.folder import BatchFolder, require_unused
from amplifier_batch.record.journal import Record
from amplifier_batch.record.writer import writing
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.working_folder import working_in

Rows = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""An input as `amplifier batch run` takes it, or the rows themselves."""

_MAX_WAITING_ANSWERS = 100
_SAVED_ROWS = "input.jsonl"


def _name_arguments(text: str) -> str:
    """Replace the options of the command by the arguments of `batch`."""
    return re.sub(r"--[a-z][a-z-]+", lambda option: option[0][2:].replace("-", "_"), text)


class BatchStopped(AppError):
    """A batch stopped before all rows had ended; the same call with its folder continues it.

    Attributes:
        outcome: The name of the ending, such as "budget".
    """

    def __init__(self, stop: Stop) -> None:
        hint = stop.hint
        # The hint of the command names its commands.
        if hint is None or "FOLDER" in hint:
            hint = "Continue it with the same call and folder."
            if stop.ending is Ending.BUDGET:
                hint = "Continue it with the same call and folder, and a larger max_cost."
        super().__init__(_name_arguments(stop.message), hint=_name_arguments(hint))
        self.outcome = stop.ending.value


async def batch(
    plan: Plan,
    rows: Rows,
    *,
    folder: str | os.PathLike[str] | None = None,
    prompt: str | None = None,
    workers: int | None = None,
    repeat: int = 1,
    cache: bool = False,
    max_cost: float | None = None,
    max_forecast: float | None = None,
    max_cost_row: float | None = None,
    stop_after: int | None = None,
    timeout: float | None = None,
    schema: Mapping[str, Any] | None = None,
    checks: Sequence[str] = (),
    workdir: str = "same",
    approve: Approve = "deny",
) -> AsyncGenerator[RowAnswer]:
    """Run a plan over every row of an input, in worker processes, and yield each answer when it is saved.

    With the folder of an earlier call, the batch continues: answers it has come first, rows that were
    interrupted continue their sessions, and no row runs twice. The `amplifier batch` commands work on the
    folder, too. Leaving the loop, if the generator is closed, or cancelling the task stops the rows.

    Args:
        plan: The plan.
        rows: Mappings, or a path as `amplifier batch run` takes it.
        folder: Folder for results and sessions; None for one that is removed at the end.
        prompt: The prompt, with `{{field}}` for fields of the row; by default the plan's, or the field `prompt`.
        workers: How many rows run at a time; by default 8.
        repeat: How many times each row runs.
        cache: Reuse answers to identical requests, also of other batches that ran with it.
        max_cost: US dollars at which the batch stops.
        max_forecast: US dollars that all rows may cost by the forecast of the first ones.
        max_cost_row: US dollars at which a row stops.
        stop_after: The number of failed rows at which the batch stops.
        timeout: Seconds a row may take.
        schema: The JSON Schema that answers must match.
        checks: Shell commands that must succeed after an answer.
        workdir: Where rows run: `same`, `fresh`, `copy` or `clone`.
        approve: See `open_session`.

    Raises:
        BatchStopped: It stopped before all rows had ended, for example at `max_cost`.
        UsageError: The plan has functions or was given as data, and exists in this process only.
        ConfigError: The rows are invalid, or differ from those that the folder's batch began with.
        AppError: The batch cannot begin or go on.
    """
    check_approve(approve)
    if folder is not None:
        local_folder(os.fspath(folder))
    if plan.functions is not None:
        raise UsageError(
            f"the rows of a batch run in other processes, without the functions {', '.join(plan.functions.tools)}",
            hint="Offer them as a tool module: amplifier module new tool my-tool",
        )
    if plan.data is not None:
        raise UsageError(
            "the rows of a batch run in other processes, which read the plan from a file",
            hint="Write it to a file: json.dump(plan, file)",
        )
    chosen, request = plan.loaded
    request = request._replace(
        max_cost=max_cost_row,
        timeout=timeout,
        check=list(checks),
        approve=approve,
    ).validate()
    options = BatchOptions(
        workers, _text(max_cost), _text(max_forecast), _text(stop_after)
    ).validate()
    row = RowOptions(prompt, workdir, repeat, cache=cache)
    call = _Call(chosen, request, rows, schema, row, options)
    answers: asyncio.Queue[Record] = asyncio.Queue(_MAX_WAITING_ANSWERS)

    async def run() -> None:
        with working_in(plan.workdir):
            async with contextlib.aclosing(_stream_results(call, folder)) as results:
                async for result in results:
                    await answers.put(result)

    # A task of its own stops the rows although the caller is cancelled at each of its waits.
    running, answer = start_task(run()), None
    try:
        while not (running.done() and answers.empty()):
            answer = asyncio.ensure_future(answers.get())
            await asyncio.wait([answer, running], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                result = answer.result()
                yield RowAnswer(
                    result["row"], result["number"], result["repeat"], to_answer(result)
                )
        await running
    finally:
        if answer is not None:
            answer.cancel()
        running.cancel()
        await asyncio.wait([running])


def _text(limit: float | None) -> str | None:
    return None if limit is None else str(limit)


class _Call(NamedTuple):
    """The arguments of `batch`."""

    chosen: Chosen
    request: Request
    rows: Rows
    schema: Mapping[str, Any] | None
    row: RowOptions
    options: BatchOptions


async def _stream_results(
    call: _Call, folder: str | os.PathLike[str] | None
) -> AsyncGenerator[Record]:
    """Run or continue a batch, and yield the lines of its results: those of earlier runs first.

    Args:
        call: What to run.
        folder: Its folder; None for one that is removed at the end.

    Raises:
        BatchStopped: It stopped before all rows had ended.
        AppError: It cannot begin or go on; what has ended is saved.
    """
    with ExitStack() as resources:
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="amplifier-batch-")
            folder = Path(resources.enter_context(scratch)) / "batch"
        batch, request = await asyncio.to_thread(_open_batch, call, Path(folder).absolute())
        with writing(batch) as writer:
            batch.change(call.options.settings())
            for result in batch.results():
                yield result
            ended: asyncio.Queue[Record | None] = asyncio.Queue()
            writer.on_result = ended.put_nowait
            async with dispatching(writer, request) as dispatcher:
                running = asyncio.ensure_future(dispatcher.run())
                running.add_done_callback(lambda _: ended.put_nowait(None))
                try:
                    while (result := await ended.get()) is not None:
                        yield result
                    await running
                finally:
                    if not running.done():
                        stop = Stop(Ending.INTERRUPTED, "the batch was cancelled")
                        await dispatcher.stop(stop, "now")
                        await asyncio.wait([running])
            if dispatcher.stopped is not None:
                raise BatchStopped(dispatcher.stopped)


def _open_batch(call: _Call, folder: Path) -> tuple[BatchFolder, Request]:
    """The batch in a folder, new or to be continued, and the request of its rows."""
    request, text = call.request, None
    if call.schema is not None:
        request = request._replace(schema=folder / "schema.json")
        text = _json(call.schema, "schema")
    with tempfile.TemporaryDirectory(prefix="amplifier-rows-") as scratch:
        source = _source(call.rows, Path(scratch))
        facts = new_facts(request, call.chosen, source, call.row)
        if (folder / "batch.json").exists():
            batch = BatchFolder(folder)
            batch.require_unedited()
            if has_absolute_ids(batch.facts):
                facts["input_digest"] = compute_digest(source, absolute=True)
            require_same(batch, facts, text)
            return batch, request
        require_unused(folder)
        if text is not None:
            write_private(folder / "schema.json", text)
        if source.parent == Path(scratch):
            write_private(folder / _SAVED_ROWS, source.read_text(encoding="utf-8"))
            facts["input"] = str(folder / _SAVED_ROWS)
        facts |= call.options.settings()
        return BatchFolder.create(folder, facts, call.chosen.plan.to_yaml()), request


def _source(rows: Rows, scratch: Path) -> Path:
    """The input; rows themselves are written to a file."""
    if isinstance(rows, (str, os.PathLike)):
        return Path(rows)
    file = scratch / _SAVED_ROWS
    make_private_folder(scratch)
    with open(file, "w", encoding="utf-8") as lines:
        lines.writelines(f"{_json(row, 'row')}\n" for row in rows)
    return file


def _json(value: Mapping[str, Any], what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the {what} is not JSON data: {error}") from error
