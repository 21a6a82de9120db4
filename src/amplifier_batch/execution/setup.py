"""The facts about a batch in batch.json: a new one, its limits, and its validity."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import AppError, ConfigError, SessionError, UsageError
from amplifier_app.base.file_writing import open_private
from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.base.stdio import Output, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.run.choose import Chosen, choose, open_sources
from amplifier_app.commands.run.one_shot import read_schema
from amplifier_app.commands.run.request import Request
from amplifier_app.sources.lockfile import lock_path_for, read_lock
from amplifier_batch.dispatch import Dispatcher, Limits, Stop
from amplifier_batch.economy import Broker, batch_services, mounted_providers
from amplifier_batch.engines.pool import Engine
from amplifier_batch.input import (
    RELATIVE,
    PromptTemplate,
    compute_digest,
    has_absolute_ids,
    is_file,
    list_files,
    read_batch_rows,
)
from amplifier_batch.options import (
    DEFAULT_WORKERS,
    BatchOptions,
    RowOptions,
    parse_dollars,
)
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import BatchWriter
from amplifier_batch.workdirs import Workdirs
from amplifier_support.clock import utc_now
from amplifier_support.files import open_to_read, system_errors_as
from amplifier_support.provider_order import has_no_price, requested_model
from amplifier_support.working_folder import working_folder

_MAX_WAITING = 1000
_PIECE = 1 << 16
_MAX_SAVED = 100_000_000
"""Bytes of an input that is kept at the URL of a batch."""


def read_limits(facts: Mapping[str, Any]) -> Limits:
    """The limits in the facts of a batch.

    Raises:
        UsageError: One was edited, and is out of range.
    """
    values = {
        name: facts.get(name) for name in ("workers", "max_cost", "max_forecast", "stop_after")
    }
    options = BatchOptions(**values).validate()
    workers = options.workers or DEFAULT_WORKERS
    failures, most = None, options.stop_after
    if most is not None:
        number = int(most.rstrip("%"))
        failures = (
            max(1, facts["rows"] * (facts.get("repeat") or 1) * number // 100)
            if most.endswith("%")
            else number
        )
    return Limits(
        workers,
        parse_dollars(options.max_cost, "--max-cost"),
        parse_dollars(options.max_forecast, "--max-forecast"),
        failures,
        waiting=facts.get("waiting") or (_MAX_WAITING if _rows_share(facts) else workers),
    )


def _rows_share(facts: Mapping[str, Any]) -> bool:
    """Return True if many rows share a process, so that a waiting row costs little."""
    return Workdirs(facts["workdir"], Path(facts["working_dir"]), Path()).is_shared


def plan_request(plan: str, request: Request, max_cost_row: Decimal | None) -> Request:
    """The request of every row: the plan by its file or its name, and what a row may cost."""
    is_file = os.path.isfile(plan)
    if not is_file and (os.sep in plan or plan.endswith((".yaml", ".yml", ".md"))):
        hint = "Profiles: amplifier profile list"
        raise ConfigError(f"there is no plan file {plan}", hint=hint, is_usage=True)
    _check_schema(request)
    paths = {
        name: path.absolute()
        for name in ("schema", "lock")
        if (path := getattr(request, name)) is not None
    }
    return request.validate()._replace(
        plan=Path(plan).absolute() if is_file else None,
        profile=None if is_file else plan,
        max_cost=None if max_cost_row is None else float(max_cost_row),
        **paths,
    )


def _check_schema(request: Request) -> None:
    if request.schema is None:
        return
    with system_errors_as(UsageError, f"--schema: cannot read {request.schema}"):
        # Not a stream: every worker reads it again.
        os.close(open_to_read(request.schema))
    read_schema(request)


def new_facts(request: Request, chosen: Chosen, source: Path, row: RowOptions) -> dict[str, Any]:
    """Return the contents of batch.json for a new batch, after every row was looked at.

    Args:
        request: The plan and the options of every row.
        chosen: What the request resolves to.
        source: The input.
        row: What runs for each row.

    Raises:
        AppError: The input or a prompt is not valid.
    """
    if not source.exists() and not glob.has_magic(str(source)):
        message = f"cannot read the input {source}: no such file or directory"
        raise ConfigError(message, is_usage=True)
    prompt = chosen.plan.data.get("prompt") if row.prompt is None else row.prompt
    folder = working_folder()
    workdirs = Workdirs(row.workdir, Path(folder), Path())
    facts: dict[str, Any] = {
        "created": utc_now().isoformat(timespec="seconds"),
        "plan": chosen.plan.name,
        "request": request.as_data(),
        "working_dir": folder,
        "prompt": prompt,
        "workdir": row.workdir,
        "input": str(source.absolute()),
        "files": (files := None if is_file(source) else list_files(source)),
        "ids": RELATIVE,
        "shard": row.shard,
        "economy": row.economy,
        "cache": row.cache,
        "scores": row.score or [],
        **_digests(request, chosen, source, absolute=False, files=files),
    }
    template, number = PromptTemplate(prompt), 0
    for batch_row in read_batch_rows(facts):
        template.render(batch_row)
        if not number and (name := template.find_plain_field(batch_row)):
            text = f"{{{name}}} in the prompt is sent as it is; for the field, write {{{{{name}}}}}"
            to_stderr(f"warning: {text}\n")
        workdirs.of(batch_row, batch_row.id)
        number += 1
    if not number and row.shard and any(read_batch_rows({**facts, "shard": None})):
        hint = "Use at most as many shards as the input has rows."
        raise ConfigError(f"shard {row.shard} of {source} has no rows", hint=hint)
    if not number:
        raise ConfigError(f"{source} has no rows", hint="Check the input.")
    return {**facts, "rows": number, "repeat": row.repeat}


def reopen_request(folder: BatchFolder, output: Output) -> Request:
    """The request of an existing batch, if its facts, plan, lock and input are the same as at its start.

    Raises:
        ConfigError: They are not.
    """
    facts = folder.facts
    folder.require_unedited()
    if None in (facts.get(name) for name in ("request", "working_dir", "input")):
        raise SessionError(f"{folder.shown}/batch.json is damaged", hint="Start the batch again.")
    try:
        os.chdir(facts["working_dir"])
    except OSError as error:
        raise ConfigError(
            f"cannot change to the folder that the batch ran in: {facts['working_dir']}: "
            f"{(error.strerror or '').lower()}"
        ) from error
    request = Request.from_data(facts["request"])
    try:
        chosen = choose(request, output)
    except ConfigError as error:
        error.is_usage = False  # batch.json names the plan, not this command line
        raise
    source, absolute = Path(facts["input"]), has_absolute_ids(facts)
    digests = _digests(request, chosen, source, absolute=absolute, files=facts.get("files"))
    if absolute and digests["input_digest"] != facts.get("input_digest"):
        # Earlier versions took the names of files as they were given.
        digests["input_digest"] = compute_digest(Path(os.path.relpath(source)), absolute=True)
    names = {"plan_digest": "plan", "lock_digest": "lock file", "input_digest": "input"}
    changed = [names[key] for key, digest in digests.items() if facts.get(key) != digest]
    if changed:
        # The environment decides on parts of a plan, such as providers without a key.
        dropped = [entry.note for entry in chosen.plan.dropped if not entry.is_fallback]
        hints = [
            *(dropped if "plan" in changed else ()),
            "Restore it, or start a new batch: the results would not be comparable.",
        ]
        raise ConfigError(
            f"the {' and the '.join(changed)} changed since the batch began", hint="\n".join(hints)
        )
    return request


_FIXED = {
    "plan_digest": "plan",
    "lock_digest": "lock file",
    "input_digest": "rows",
    "prompt": "prompt",
    "workdir": "workdir",
    "repeat": "repeat",
    "working_dir": "current directory",
    "request": "options",
    "until": "--until",
}
"""Facts that must be the same when a batch is continued, with their names."""


def require_same(batch: BatchFolder, facts: Mapping[str, Any], schema: str | None = None) -> None:
    """Check that an existing batch began with the same facts as a call that continues it.

    Args:
        batch: The batch.
        facts: The facts of the call; see `new_facts`.
        schema: The schema of the answers, if the batch has saved it.

    Raises:
        ConfigError: It began with others.
    """
    now = json.loads(json.dumps(facts, default=str))
    # Earlier versions had fewer options.
    request = Request.from_data(batch.facts.get("request") or {})
    before = {**batch.facts, "request": request.as_data()}
    if before.get("files") and before["input"] == now["input"]:
        # The files that were there at its start count.
        now["input_digest"] = before["input_digest"]
    changed = [name for key, name in _FIXED.items() if before.get(key) != now.get(key)]
    if schema is not None and (batch.path / "schema.json").read_text(encoding="utf-8") != schema:
        changed.append("schema")
    if changed:
        article = "" if changed[0] in ("rows", "options") else "a "
        raise ConfigError(
            f"the batch in {batch.shown} began with {article}different {' and '.join(changed)}",
            hint="Use the ones it began with, or another folder.",
        )


def _digests(
    request: Request, chosen: Chosen, source: Path, *, absolute: bool, files: Sequence[str] | None
) -> dict[str, str | None]:
    lock = None
    if request.locked:
        file = request.lock or lock_path_for(chosen.plan)
        with system_errors_as(ConfigError, f"cannot read the lock {file}"):
            lock = f"sha256:{hashlib.sha256(read_lock(file)).hexdigest()}"
    return {
        "plan_digest": chosen.plan.digest,
        "lock_digest": lock,
        "input_digest": compute_digest(source, absolute=absolute, files=files),
    }


@contextlib.contextmanager
def naming_stdin(saved: Path) -> Generator[None]:
    """Name stdin in errors instead of the file that it was saved to, which a refused batch does not keep."""
    try:
        yield
    except AppError as error:
        error.message = error.message.replace(str(saved), "stdin")
        if error.location is not None and error.location.file == str(saved.absolute()):
            error.location = error.location._replace(file="stdin")
        raise


def save_stdin(folder: Path) -> Path:
    """Save the input on stdin to a folder, and return its file.

    Raises:
        AppError: It cannot be saved.
    """
    stdin = sys.stdin.buffer
    # In pieces: a line may be longer than the memory.
    first = stdin.readline(_PIECE)
    while first and not first.strip():
        first = stdin.readline(_PIECE)
    ending = {b"{": ".jsonl", b"[": ".json"}.get(first.strip()[:1], ".txt")
    file = folder / f"input{ending}"
    with (
        system_errors_as(AppError, f"cannot save the input to {file}"),
        open(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as saved,
    ):
        saved.write(first)
        shutil.copyfileobj(stdin, saved)
    return file


def save_input(folder: Path, source: Path) -> Path:
    """Copy an input that is one file to the folder of a batch at a URL, and return the file to use.

    Raises:
        AppError: It cannot be copied.
    """
    if not source.is_file() or source.stat().st_size > _MAX_SAVED:
        return source.absolute()
    file = folder / f"input{''.join(source.suffixes[-2:])}"
    with system_errors_as(AppError, f"cannot copy the input to {file}"):
        shutil.copyfile(source, file)
    return file


_STDERR = 2
_SMALLER = "Continue with: amplifier batch resume FOLDER, with --waiting N for smaller batches"


def require_batches(request: Request, chosen: Chosen) -> None:
    """Check that the plan's provider has batches.

    Raises:
        ConfigError: It has none, or no provider is available.
    """

    async def check() -> None:
        async with batch_services(chosen.plan, await open_sources(request, chosen)):
            pass

    run_loop(check())


async def lacks_price(request: Request) -> bool:
    """Return True if the plan's provider reports that it does not know the price of its model."""
    try:
        chosen = choose(request, Output(_STDERR))
        sources = await open_sources(request, chosen)
        async with mounted_providers(chosen.plan, sources) as (name, instances):
            orchestrator = chosen.plan.mount_plan()["session"]["orchestrator"]
            model = requested_model(orchestrator, instances[name])
            return has_no_price(instances[name], model)
    # Providers may raise anything. The first row meets the same problem, and reports it.
    except Exception:
        return False


@contextlib.asynccontextmanager
async def open_broker(
    request: Request,
    writer: BatchWriter,
    dispatcher: Dispatcher,
    engine: Engine,
    changed: Callable[[], None],
    notice: Callable[[str], None],
) -> AsyncGenerator[Broker]:
    """Give the rows of a dispatcher their answers at batch prices.

    Raises:
        AppError: The plan or its providers are unavailable.
    """

    async def fail(error: Exception) -> None:
        outcome = to_outcome(error)
        hint = _SMALLER if outcome.ending is Ending.PROVIDER else outcome.hint
        await dispatcher.stop(Stop(outcome.ending, outcome.message, hint))

    chosen = choose(request, Output(_STDERR))
    async with batch_services(chosen.plan, await open_sources(request, chosen)) as services:
        deadline = writer.folder.facts.get("deadline")
        broker = Broker(
            services,
            writer.progress.sent,
            writer.note,
            engine.reply,
            fail,
            changed,
            notice,
            deadline,
            writer.folder.sealer.seal,
        )
        dispatcher.broker = broker
        try:
            yield broker
        finally:
            await broker.close()
