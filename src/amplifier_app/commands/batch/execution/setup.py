"""What a batch is asked to do: its options, the facts in batch.json, and whether they still hold."""

# Without `from __future__ import annotations`, whose strings would be compiled at every start.
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from amplifier_app.base.errors import AppError, ConfigError, SessionError, UsageError
from amplifier_app.base.private_files import open_private
from amplifier_app.base.stdio import Output
from amplifier_app.batch.dispatch import Limits
from amplifier_app.batch.input.prompts import PromptTemplate
from amplifier_app.batch.input.rows import Row, digest_of, read_rows
from amplifier_app.batch.record.folder import BatchFolder
from amplifier_app.batch.workdirs import Workdirs
from amplifier_app.commands.batch.execution.worker import request_as_data, request_from
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.one_shot import read_schema
from amplifier_app.commands.run.request import Request
from amplifier_app.sources.lockfile import lock_path_for, read_lock
from amplifier_support.readable_files import open_to_read

ROW_OPTIONS = (
    *(
        "provider",
        "model",
        "sets",
        "max_steps",
        "timeout",
        "mode",
        "sandbox",
        "trust",
        "no_project",
        "tools",
    ),
    *("schema", "check", "retries", "locked", "lock", "offline"),
)
"""The options of `run` that apply to every row."""

DEFAULT_WORKERS = 8

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of the batch.", show_default=False)
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        "-w",
        min=1,
        max=1000,
        metavar="N",
        rich_help_panel="Limits",
        help=f"Rows to run at a time. [default: {DEFAULT_WORKERS}]",
    ),
]
MaxCostOption = Annotated[
    str | None,
    typer.Option(
        "--max-cost",
        metavar="DOLLARS",
        rich_help_panel="Limits",
        help="Stop when all rows together have cost this much; 'none' for no limit.",
    ),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="DURATION",
        rich_help_panel="Limits",
        help="With --economy: pay the normal price for requests without an answer after 6h, 1d, …",
    ),
]
WaitingOption = Annotated[
    int | None,
    typer.Option(
        "--waiting",
        min=1,
        max=100_000,
        metavar="N",
        rich_help_panel="Limits",
        help="With --economy: rows in one batch. [default: 1000]",
    ),
]
StopAfterOption = Annotated[
    str | None,
    typer.Option(
        "--stop-after",
        metavar="N|X%",
        rich_help_panel="Limits",
        help="Stop when this many rows have failed; 'none' for no limit.",
    ),
]

EngineOption = Annotated[
    Literal["local", "ray"] | None,
    typer.Option(
        "--engine",
        rich_help_panel="Engine",
        help="Where rows run: on this machine, or on a Ray cluster. [default: local]",
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        rich_help_panel="Engine",
        help="The Ray cluster; 'auto' for the one on this machine. [default: $RAY_ADDRESS, or a local Ray]",
    ),
]

_NO_LIMIT = "none"
MOST_WAITING = 1000
_FAILURES = re.compile(r"[1-9]\d*%?")
_INDEXES = ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "AWS_BATCH_JOB_ARRAY_INDEX")
"""Environment variables with the index of a job in Kubernetes, SLURM and AWS Batch."""
_SHARD = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")


class Asked(NamedTuple):
    """How a batch runs; None leaves a value as it is in batch.json.

    Attributes:
        workers: How many rows run at once.
        max_cost: US dollars for all rows.
        stop_after: How many rows may fail, as a number or a percentage.
        deadline: How long to wait for answers at batch prices, as a duration from now.
        engine: What runs the rows.
        address: The Ray cluster.
        waiting: How many rows may run or wait at batch prices.
    """

    workers: int | None
    max_cost: str | None
    stop_after: str | None
    deadline: str | None = None
    engine: Literal["local", "ray"] | None = None
    address: str | None = None
    waiting: int | None = None

    def checked(self) -> "Asked":
        """The same options.

        Raises:
            UsageError: A value is out of range.
        """
        if self.max_cost != _NO_LIMIT:
            dollars_of(self.max_cost, "--max-cost")
        if self.stop_after not in (None, _NO_LIMIT) and not _FAILURES.fullmatch(self.stop_after):
            raise UsageError(
                f"--stop-after: expected a number or a percentage, got {self.stop_after!r}"
            )
        if self.deadline is not None:
            parse_duration(self.deadline, "--deadline")
        if self.address is not None and self.engine != "ray":
            raise UsageError("--address requires --engine ray")
        return self

    def given(self) -> dict[str, Any]:
        """The fields of batch.json that these options set."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        if self.deadline is not None:
            given["deadline"] = time.time() + parse_duration(self.deadline, "--deadline")
        return {name: None if value == _NO_LIMIT else value for name, value in given.items()}


def check_economy(asked: Asked, economy: bool, engine: str | None) -> None:
    """Check the options that belong to batch prices.

    Raises:
        UsageError: They cannot be used with the others.
    """
    for option, value in (("--deadline", asked.deadline), ("--waiting", asked.waiting)):
        if value is not None and not economy:
            raise UsageError(f"{option} requires a batch that is run with --economy")
    if economy and engine == "ray":
        raise UsageError(
            "--economy and --engine ray are mutually exclusive",
            hint="Rows at batch prices mostly wait: one machine is enough.",
        )


def dollars_of(text: str | None, option: str) -> Decimal | None:
    """An amount of an option; None if it is not given.

    Raises:
        UsageError: It is not a number above 0.
    """
    if text is None:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(0)
    if not amount.is_finite() or amount <= 0:
        raise UsageError(f"{option}: expected a number above 0, got {text!r}")
    return amount


def limits_of(facts: Mapping[str, Any]) -> Limits:
    """The limits in the facts of a batch.

    Raises:
        UsageError: One was edited, and is out of range.
    """
    asked = Asked(facts.get("workers"), facts.get("max_cost"), facts.get("stop_after")).checked()
    workers = asked.workers or DEFAULT_WORKERS
    failures, most = None, asked.stop_after
    if most is not None:
        number = int(most.rstrip("%"))
        failures = (
            max(1, facts["rows"] * (facts.get("repeat") or 1) * number // 100)
            if most.endswith("%")
            else number
        )
    return Limits(
        workers,
        dollars_of(asked.max_cost, "--max-cost"),
        failures,
        waiting=facts.get("waiting") or (MOST_WAITING if _rows_share(facts) else workers),
    )


def _rows_share(facts: Mapping[str, Any]) -> bool:
    """Whether many rows share a process, so that a waiting row costs little."""
    return Workdirs(facts["workdir"], Path(facts["working_dir"]), Path()).is_shared


def shard_of(text: str | None, environment: Mapping[str, str]) -> str | None:
    """The shard of an option, with the number of this job in place of `auto`.

    Raises:
        UsageError: It is not a shard, or this is not a job of an array.
    """
    number, slash, of = (text or "").partition("/")
    if number == "auto" and slash:
        found = [name for name in _INDEXES if environment.get(name, "").isdecimal()]
        if not found:
            raise UsageError(
                f"--shard {text}: this is not a job of an array",
                hint=f"It must have one of {', '.join(_INDEXES)}, which count from 0.",
            )
        text = f"{int(environment[found[0]]) + 1}/{of}"
    parse_shard(text)
    return text


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """The shard `2/16` as its number from 0 and how many there are.

    Raises:
        UsageError: It is not a shard.
    """
    if text is None:
        return None
    found = _SHARD.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found else (2, 1)
    if number > of:
        raise UsageError(f"--shard: expected K/N with K from 1 to N, got {text!r}")
    return number - 1, of


def rows_of(facts: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a batch, in order: those of its shard, each as often as it runs.

    Raises:
        ConfigError: The input cannot be read.
    """
    shard = parse_shard(facts.get("shard"))
    repeat = facts.get("repeat") or 1
    for row in read_rows(Path(facts["input"])):
        if shard is None or row.number % shard[1] == (shard[0] + 1) % shard[1]:
            if repeat == 1:
                yield row
            else:
                yield from (row._replace(run=run) for run in range(1, repeat + 1))


def plan_request(plan: str, request: Request, max_cost_row: Decimal | None) -> Request:
    """The request of every row: the plan by its file or its name, and what a row may cost."""
    is_file = os.path.isfile(plan)
    if not is_file and (os.sep in plan or plan.endswith((".yaml", ".yml", ".md"))):
        raise ConfigError(f"there is no plan file {plan}", hint="Profiles: amplifier profile list")
    _check_schema(request)
    paths = {
        name: path.absolute()
        for name in ("schema", "lock")
        if (path := getattr(request, name)) is not None
    }
    return request.checked()._replace(
        plan=Path(plan).absolute() if is_file else None,
        profile=None if is_file else plan,
        max_cost=None if max_cost_row is None else float(max_cost_row),
        **paths,
    )


def _check_schema(request: Request) -> None:
    if request.schema is None:
        return
    try:
        # Not a stream: every worker reads it again.
        os.close(open_to_read(request.schema))
    except OSError as error:
        raise UsageError(f"--schema: cannot read {request.schema}: {error.strerror}") from error
    read_schema(request)


def new_facts(
    request: Request,
    chosen: Chosen,
    source: Path,
    prompt: str | None,
    shard: str | None,
    workdir: str,
    repeat: int = 1,
    *,
    economy: bool = False,
) -> dict[str, Any]:
    """What batch.json has about a new batch, after every row was looked at.

    Raises:
        AppError: The input or a prompt is not valid.
    """
    workdirs = Workdirs(workdir, Path(os.getcwd()), Path())
    facts: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "plan": chosen.plan.name,
        "request": request_as_data(request),
        "working_dir": os.getcwd(),
        "prompt": prompt,
        "workdir": workdir,
        "input": str(source.absolute()),
        "shard": shard,
        "economy": economy,
        **_digests(request, chosen, source),
    }
    template, number = PromptTemplate(prompt), 0
    for row in rows_of(facts):
        template.render(row)
        workdirs.of(row, row.id)
        number += 1
    if not number:
        raise ConfigError(f"{source} has no rows", hint="Check the path of the input.")
    return {**facts, "rows": number, "repeat": repeat}


def reopened(folder: BatchFolder, output: Output) -> Request:
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
    request = request_from(facts["request"])
    found = _digests(request, choose(request, output), Path(facts["input"]))
    names = {"plan_digest": "plan", "lock_digest": "lock file", "input_digest": "input"}
    changed = [names[key] for key, digest in found.items() if facts.get(key) != digest]
    if changed:
        raise ConfigError(
            f"the {' and the '.join(changed)} changed since the batch began",
            hint="Restore it, or start a new batch: the results would not be comparable.",
        )
    return request


def _digests(request: Request, chosen: Chosen, source: Path) -> dict[str, str | None]:
    lock = None
    if request.locked:
        file = request.lock or lock_path_for(chosen.plan)
        try:
            lock = f"sha256:{hashlib.sha256(read_lock(file)).hexdigest()}"
        except OSError as error:
            raise ConfigError(f"cannot read the lock {file}: {error.strerror}") from error
    return {
        "plan_digest": chosen.plan.digest,
        "lock_digest": lock,
        "input_digest": digest_of(source),
    }


def saved_stdin(folder: Path) -> Path:
    """Save the input on stdin to a folder, and return its file.

    Raises:
        AppError: It cannot be saved.
    """
    stdin = sys.stdin.buffer
    first = stdin.readline()
    while first and not first.strip():
        first = stdin.readline()
    ending = {b"{": ".jsonl", b"[": ".json"}.get(first.strip()[:1], ".txt")
    file = folder / f"input{ending}"
    try:
        with open(open_private(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as saved:
            saved.write(first)
            shutil.copyfileobj(stdin, saved)
    except OSError as error:
        raise AppError(f"cannot save the input to {file}: {error.strerror}") from error
    return file
