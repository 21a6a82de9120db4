"""Options of the batch commands, each declared once, as the field that holds its value."""

# Without `from __future__ import annotations`, whose strings would be compiled at every start.
import re
import time
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.option import Option, parse_duration
from amplifier_app.commands.typer_options import argument, option
from amplifier_batch.record.remote import find_folder, find_new_folder, is_url
from amplifier_support.named_tuple import NamedTuple

_WHAT = "What runs"
_what = partial(Option, group=_WHAT)
_limit = partial(Option, group="Limits")
_engine = partial(Option, group="Engine")

DEFAULT_WORKERS = 8

_NO_LIMIT = "none"
_FAILURES = re.compile(r"[1-9]\d*%?")

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

ScoreOption = Annotated[
    list[str] | None,
    option(
        "--score NAME=COMMAND",
        "A shell command, python:FILE.py:FUNCTION, python:MODULE:FUNCTION or judge:PLAN; repeatable.",
    ),
]
WhereOption = Annotated[
    str | None,
    option(
        "--where EXPR",
        "Only these rows: FIELD=VALUE or FIELD!=VALUE, joined with 'and'; fields are the columns of "
        "'batch results'.",
    ),
]
FolderArgument = Annotated[
    Path, argument("FOLDER", "The folder of the batch, or its URL.", parser=find_folder)
]
TakeOverOption = Annotated[
    bool,
    option(
        "--take-over",
        "For a URL: do not wait until the process that ran the batch is gone for a minute.",
        rich_help_panel=_WHAT,
    ),
]
NewRecordOption = Annotated[
    Path,
    option(
        "-o, --to FOLDER",
        "Folder for the results, new or empty; or a URL such as s3://BUCKET/PATH.",
        parser=find_new_folder,
        rich_help_panel=_WHAT,
    ),
]


def local_folder(text: str) -> Path:
    """A folder, not a URL. Raises UsageError."""
    if is_url(text):
        hint = "Use a folder, or keep a batch there with: amplifier batch run PLAN INPUT -o URL"
        raise UsageError(f"expected a folder, got the URL {text!r}", hint=hint)
    return Path(text)


NewFolderOption = Annotated[
    Path,
    option(
        "-o, --to FOLDER",
        "Folder for the results; must be new or empty.",
        parser=local_folder,
        rich_help_panel=_WHAT,
    ),
]
ApproveOption = Annotated[
    Literal["deny", "allow", "policy", "park"],
    option(
        "--approve",
        "How to handle tool calls that need approval; 'park' ends the row as 'waiting', for 'amplifier batch approve'.",
        rich_help_panel="Permissions",
    ),
]
QuietOption = Annotated[bool, option("-q, --quiet", "Show no progress.", rich_help_panel="Output")]


class RowOptions(NamedTuple):
    """The options of each row; they stay the same when the batch is continued.

    Attributes:
        prompt: The template of the prompts; None for that of the plan or the row's own.
        workdir: Where a row runs; see `Workdirs`.
        repeat: How often each row runs.
        economy: Whether answers come at batch prices.
        shard: Which part of the rows; see `choose_shard`.
        score: What scores the answers, as `NAME=COMMAND`.
        cache: Whether answers come from the cache that batches share.
        max_cost_row: US dollars for one row.
    """

    prompt: Annotated[
        str | None,
        _what(
            "--prompt TEXT",
            "The prompt; {{field}} is replaced by a field of the row. [default: the plan's, else the field 'prompt' "
            "of the row, or its line of text]",
        ),
    ] = None
    workdir: Annotated[
        str,
        _what(
            "--workdir KIND[:PATH]",
            "Where a row runs: 'same' folder for all, an empty one ('fresh'), or a 'copy' or git "
            "'clone' of PATH, which may have fields of the row.",
        ),
    ] = "same"
    repeat: Annotated[
        int,
        _what(
            "--repeat N",
            "Run each row N times; reports then contain pass@k for k from 1 to N.",
            min=1,
            max=1000,
        ),
    ] = 1
    economy: Annotated[
        bool,
        _what(
            "--economy", "Get answers at the provider's batch price, about half, each within a day."
        ),
    ] = False
    shard: Annotated[
        str | None,
        _what(
            "--shard K/N",
            "Run only the K-th of N parts of the rows; auto/N takes K from the index of this array job.",
        ),
    ] = None
    score: Annotated[
        list[str] | None,
        _what(
            "--score NAME=COMMAND",
            "Score each answer at the end, as 'amplifier batch score' does; repeatable.",
        ),
    ] = None
    cache: Annotated[
        bool,
        _what(
            "--cache",
            "Reuse answers to identical requests, also of other batches that ran with --cache.",
        ),
    ] = False
    max_cost_row: Annotated[
        str | None, _limit("--max-cost-row DOLLARS", "Stop a row when it has cost this much.")
    ] = None


class BatchOptions(NamedTuple):
    """The options for running the rows; None leaves a value as it is in batch.json.

    Attributes:
        workers: How many rows run at once.
        max_cost: US dollars for all rows.
        max_forecast: US dollars that all rows may cost by the forecast.
        stop_after: How many rows may fail, as a number or a percentage.
        deadline: How long to wait for answers at batch prices, as a duration from now.
        waiting: How many rows may run or wait at batch prices.
        engine: What runs the rows.
        address: The Ray cluster.
        cpus: CPUs of a worker on it.
        resources: Further resources of a worker; see `parse_resources`.
    """

    workers: Annotated[
        int | None,
        _limit(
            "-w, --workers N",
            f"Rows to run at a time. [default: that of the batch, {DEFAULT_WORKERS} for a new one]",
            min=1,
            max=1000,
        ),
    ] = None
    max_cost: Annotated[
        str | None,
        _limit(
            "--max-cost DOLLARS",
            "Stop when all rows together have cost this much; 'none' for no limit.",
        ),
    ] = None
    max_forecast: Annotated[
        str | None,
        _limit(
            "--max-forecast DOLLARS",
            "Stop after the first rows if all rows together will cost more than this; 'none' for no limit.",
        ),
    ] = None
    stop_after: Annotated[
        str | None,
        _limit("--stop-after N|X%", "Stop when this many rows have failed; 'none' for no limit."),
    ] = None
    deadline: Annotated[
        str | None,
        _limit(
            "--deadline TIME",
            "With --economy: pay the normal price for requests without an answer after 6h, 1d, …",
        ),
    ] = None
    waiting: Annotated[
        int | None,
        _limit(
            "--waiting N", "With --economy: rows in one batch. [default: 1000]", min=1, max=100_000
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"] | None,
        _engine(
            "--engine", "Where rows run: on this machine, or on a Ray cluster. [default: local]"
        ),
    ] = None
    address: Annotated[
        str | None,
        _engine(
            "--address HOST:PORT",
            "The Ray cluster; 'auto' for the one on this machine. [default: $RAY_ADDRESS, or a local Ray]",
        ),
    ] = None
    cpus: Annotated[
        float | None,
        _engine(
            "--cpus N", "With --engine ray: CPUs to request for a worker. [default: 1 for 8 rows]"
        ),
    ] = None
    resources: Annotated[
        str | None,
        _engine(
            "--resources NAME=N,…",
            "With --engine ray: further resources of the nodes to request for a worker.",
        ),
    ] = None

    def validate(self) -> "BatchOptions":
        """The same options.

        Raises:
            UsageError: A value is out of range.
        """
        limits = {"--max-cost": self.max_cost, "--max-forecast": self.max_forecast}
        for name, dollars in limits.items():
            if dollars != _NO_LIMIT:
                parse_dollars(dollars, name)
        if self.stop_after not in (None, _NO_LIMIT) and not _FAILURES.fullmatch(self.stop_after):
            raise UsageError(
                f"--stop-after: expected a number or a percentage, got {self.stop_after!r}"
            )
        if self.deadline is not None:
            parse_duration(self.deadline, "--deadline")
        for name in ("address", "cpus", "resources"):
            if getattr(self, name) is not None and self.engine != "ray":
                raise UsageError(f"--{name} requires --engine ray")
        if self.cpus is not None and not 0 < self.cpus < float("inf"):
            raise UsageError(f"--cpus must be greater than 0 (got {self.cpus:g})")
        parse_resources(self.resources)
        return self

    def check_engine(self, economy: bool, engine: str | None, approve: str | None) -> None:
        """Check the options that belong to an engine, or to batch prices.

        Args:
            economy: Whether the batch has answers at batch prices.
            engine: What runs its rows.
            approve: How their approval requests are answered.

        Raises:
            UsageError: They cannot be used with the others.
        """
        for name, value in (("--deadline", self.deadline), ("--waiting", self.waiting)):
            if value is not None and not economy:
                raise UsageError(f"{name} requires a batch that is run with --economy")
        if approve == "park" and engine == "ray":
            raise UsageError(
                "--approve park and --engine ray are mutually exclusive",
                hint="An answer counts only on the machine of the user who gives it.",
            )
        if economy and engine == "ray":
            raise UsageError(
                "--economy and --engine ray are mutually exclusive",
                hint="Rows at batch prices mostly wait: one machine is enough.",
            )

    def settings(self) -> dict[str, Any]:
        """The fields of batch.json that these options set."""
        values = {name: value for name, value in self._asdict().items() if value is not None}
        if self.deadline is not None:
            values["deadline"] = time.time() + parse_duration(self.deadline, "--deadline")
        return {name: None if value == _NO_LIMIT else value for name, value in values.items()}


def parse_resources(text: str | None) -> dict[str, float]:
    """The amounts of resources by name, from `NAME=N,NAME=N`.

    Raises:
        UsageError: An amount is not a number above 0.
    """
    amounts: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, _, amount = part.partition("=")
        if not name or not re.fullmatch(r"\d+(\.\d+)?", amount) or not float(amount):
            raise UsageError(f"--resources: expected NAME=N with N above 0, got {part!r}")
        amounts[name] = float(amount)
    return amounts


def parse_dollars(text: str | None, option: str) -> Decimal | None:
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
