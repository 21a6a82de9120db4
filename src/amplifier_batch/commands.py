"""`amplifier batch`: one module per command, imported when invoked."""

from __future__ import annotations

import json

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.atomic_write import write_whole
from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import claim_stdout, to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.group import command_group
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.schema import read_schema
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.dispatch import OF_EVERY_ROW
from amplifier_batch.execution.execute import execute
from amplifier_batch.execution.setup import (
    naming_stdin,
    new_facts,
    plan_request,
    reopen_request,
    require_batches,
    save_stdin,
)
from amplifier_batch.input import STDIN, shard_of
from amplifier_batch.options import (
    DEFAULT_WORKERS,
    ROW_OPTIONS,
    ApproveOption,
    BatchOptions,
    FolderArgument,
    NewFolderOption,
    QuietOption,
    RowOptions,
    dollars_of,
)
from amplifier_batch.record.folder import BatchFolder, new_folder
from amplifier_batch.record.merging import merge as merged
from amplifier_batch.record.results import batch_schema
from amplifier_batch.record.writer import writing
from amplifier_batch.reports.kinds import report as pieces
from amplifier_batch.reports.session_pages import SessionPages
from amplifier_batch.statistics.pass_rates import CONFIDENCE, PassRate
from amplifier_batch.statistics.summary import cost_in_words, outcome_of_batch, totals

app = command_group(
    "batch",
    {
        "run": "Run a plan over every row of an input.",
        "resume": "Continue a batch that was interrupted or stopped.",
        "status": "Show the progress of a batch.",
        "retry": "Run the failed rows again.",
        "set": "Change the limits of a batch, also while it runs.",
        "report": "Write a report of the results.",
        "merge": "Merge the results of shards.",
    },
    where="amplifier_batch.commands:{}_app",
    help="Run a plan over many inputs.",
)


run_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@run_app.command()
@takes_options_of(RowOptions)
@takes_options_of(Request, *ROW_OPTIONS)
@takes_options_of(BatchOptions)
def run(
    context: typer.Context,
    plan: Annotated[
        str,
        typer.Argument(metavar="PLAN", help="Plan file, or name of a profile.", show_default=False),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="The rows: .jsonl, .json, .csv, .tsv, .parquet, lines of text, a folder, a pattern in quotes, "
            "or - for stdin.",
            show_default=False,
        ),
    ],
    *,
    folder: NewFolderOption,
    row: RowOptions,
    request: Request,
    approve: ApproveOption = "deny",
    options: BatchOptions,
    quiet: QuietOption = False,
) -> None:
    """Run a plan over every row of an input.

    \b
      amplifier batch run review.yaml repos.jsonl -o out --prompt "Review {{repo}}."
      amplifier batch run default 'src/**/*.py' -o out --prompt "Which bugs does {{path}} have?"
      amplifier batch run plan.yaml repos.csv -o out --workdir 'clone:{{path}}' --max-cost 20

    Every row is a session of its own. Results are in FOLDER/results.jsonl, one line per row. After an
    interrupt or a crash, continue with: amplifier batch resume FOLDER
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    options.validate().check_economy(row.economy, options.engine)
    row = row._replace(shard=shard_of(row.shard, os.environ))
    request = plan_request(plan, request, dollars_of(row.max_cost_row, "--max-cost-row"))
    request = request._replace(approve=approve)
    chosen = choose(request, invocation.stdout)
    if row.economy:
        require_batches(request, chosen)
    with new_folder(folder) as remove_folder:
        if source == STDIN:
            source = save_stdin(folder)
            with naming_stdin(source):
                facts = new_facts(request, chosen, source, row)
        else:
            facts = new_facts(request, chosen, source, row)
        batch = BatchFolder.create(folder, facts, chosen.plan.to_yaml())
        invocation.outcome = execute(batch, request, options, quiet=quiet)
        if invocation.outcome.ending in OF_EVERY_ROW:
            remove_folder()


resume_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@resume_app.command()
@takes_options_of(BatchOptions)
def resume(
    context: typer.Context,
    folder: FolderArgument,
    *,
    options: BatchOptions,
    quiet: QuietOption = False,
) -> None:
    """Continue a batch that was interrupted or stopped.

    \b
      amplifier batch resume out
      amplifier batch resume out --max-cost 50

    Rows that have ended are not run again. An interrupted row continues its session: what it has done is
    not repeated.
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    options = options.validate()
    batch = BatchFolder(folder)
    economy = bool(batch.facts.get("economy"))
    options.check_economy(economy, options.engine or batch.facts.get("engine"))
    request = reopen_request(batch, invocation.stdout)
    invocation.outcome = execute(batch, request, options, quiet=quiet)


status_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@status_app.command()
def status(folder: FolderArgument, output: OutputOption = "text") -> None:
    """Show the progress of a batch, also while it runs.

    \b
      amplifier batch status out
      amplifier batch status out --output json | jq .ended
    """
    batch = BatchFolder(folder)
    counts, running = batch.counts()
    found = totals(batch, counts, running=running)
    if output == "json":
        print(json_text(found))
        return
    state = "running" if running else ("waiting to be resumed" if found["waiting"] else "ended")
    print(
        f"{found['ended']:,} of {found['runs']:,} {batch.unit}s, {state}{_and_cost(cost_in_words(counts.cost))}"
        f"{', at batch prices' if found['economy'] else ''}"
    )
    for one in found["open_batches"]:
        name = f"batch {one['id']}" if one["id"] else "a batch whose id is not known yet"
        requests = describe.count(one["requests"], "request")
        print(f"waiting for {name} with {requests}, sent {describe.age(one['sent'])}")
    rows = [
        *((name, f"{number:,}") for name, number in found["outcomes"].items()),
        *((name, f"{found[name]:,}") for name in ("running", "waiting") if found[name]),
    ]
    print_table(["OUTCOME", Column(f"{batch.unit}s".upper(), right=True)], rows)
    rates = [PassRate(**one) for one in found["pass_rates"]]
    if rates:
        name = "pass@{}" if batch.repeat > 1 else "passed"
        shown = [(name.format(rate.k), *_percent(rate[1:4])) for rate in rates]
        heads = (Column(head, right=True) for head in ("RATE", "FROM", "TO"))
        print()
        print_table([f"{CONFIDENCE:.0%} INTERVAL", *heads], shown)


def _percent(values: Sequence[float]) -> list[str]:
    return [f"{value:.1%}" for value in values]


def _and_cost(cost: str) -> str:
    return f", {cost}" if cost else ""


retry_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OUTCOMES = [ending.value for ending in Ending if ending is not Ending.OK]


@retry_app.command()
@takes_options_of(BatchOptions)
def retry(
    context: typer.Context,
    folder: FolderArgument,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="OUTCOMES",
            help="Only rows with these outcomes, separated by commas, such as provider,budget. "
            "[default: all that failed]",
        ),
    ] = None,
    *,
    options: BatchOptions,
    quiet: QuietOption = False,
) -> None:
    """Run the failed rows again, and those that have not ended.

    \b
      amplifier batch retry out
      amplifier batch retry out --only provider,unavailable

    A row that reached a limit continues its session; any other begins a new one.
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    options = options.validate()
    wanted = set(_OUTCOMES if only is None else only.split(","))
    if unknown := wanted.difference(_OUTCOMES):
        raise UsageError(
            f"--only: unknown outcome {sorted(unknown)[0]!r}",
            hint=f"Outcomes: {', '.join(_OUTCOMES)}",
        )
    batch = BatchFolder(folder)
    economy = bool(batch.facts.get("economy"))
    options.check_economy(economy, options.engine or batch.facts.get("engine"))
    request = reopen_request(batch, invocation.stdout)
    with writing(batch) as writer:
        number = writer.reopen(lambda result: result["outcome"] in wanted)
    if not quiet:
        to_stderr(
            f"{describe.count(number, 'failed row') if number else 'no failed rows'} to run again"
        )
    invocation.outcome = execute(batch, request, options, quiet=quiet)


set_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@set_app.command()
@takes_options_of(BatchOptions, "workers", "max_cost", "stop_after")
def set_limits(
    folder: FolderArgument, *, options: BatchOptions, output: OutputOption = "text"
) -> None:
    """Change the limits of a batch, also while it runs. Without options, shows them.

    \b
      amplifier batch set out
      amplifier batch set out --workers 2 --max-cost 20

    A running batch applies them within about a second. With fewer workers, running rows are not
    stopped; with a lower --max-cost or --stop-after, the batch may stop.
    """
    options = options.validate()
    batch = BatchFolder(folder)
    batch.change(options.settings())
    limits = _limits(batch.facts)
    if output == "json":
        print(json_text({"schema_version": 1, **limits}))
        return
    cost, failures = limits["max_cost"], limits["stop_after"]
    rows = [
        ("workers", str(limits["workers"])),
        ("cost of all rows", f"${cost}" if cost else "no limit"),
        ("failed rows", failures or "no limit"),
    ]
    print_table(["", Column("AT MOST", right=True)], rows)


def _limits(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "workers": facts.get("workers") or DEFAULT_WORKERS,
        "max_cost": facts.get("max_cost"),
        "stop_after": facts.get("stop_after"),
    }


report_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@report_app.command()
def report(
    folder: FolderArgument,
    format: Annotated[
        Literal["md", "junit", "csv", "html"],
        typer.Option("--format", help="Format of the report."),
    ] = "md",
    to: Annotated[
        Path | None,
        typer.Option("--to", "-o", metavar="FILE", help="Write to FILE, not to stdout."),
    ] = None,
    with_sessions: Annotated[
        bool,
        typer.Option(
            "--sessions",
            help="With --format html and --to: also write a page for the session of each row in the table, to "
            "a folder next to FILE.",
        ),
    ] = False,
) -> None:
    """Write a report of the results, without secrets.

    \b
      amplifier batch report out
      amplifier batch report out --format junit --to results.xml
      amplifier batch report out --format html --to report.html --sessions
    """
    batch = BatchFolder(folder)
    if to is None:
        if with_sessions:
            raise UsageError("--sessions needs a file", hint="Pass --to FILE.html")
        if format == "html" and sys.stdout.isatty():
            raise UsageError("an HTML report needs a file", hint="Pass --to FILE.html")
        for piece in pieces(batch, format):
            sys.stdout.write(for_terminal(piece) if sys.stdout.isatty() else piece)
        return
    pages = None
    if with_sessions:
        if format != "html":
            raise UsageError("--sessions needs --format html")
        pages = SessionPages(batch.sessions, to)
    write_whole(to, "".join(pieces(batch, format, pages)))
    below = f", and {describe.count(pages.written, 'session')} to {pages.folder}" if pages else ""
    to_stderr(f"Written to {to}{below}.")


merge_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@merge_app.command()
def merge(
    context: typer.Context,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="The folders of the shards.", show_default=False),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--to",
            "-o",
            metavar="FOLDER",
            help="Folder of the merged batch; must be new or empty.",
        ),
    ],
) -> None:
    """Merge the results of shards.

    \b
      amplifier batch merge part-1 part-2 -o all

    The exit code is that of a batch with all of their rows.
    """
    batch = merged([BatchFolder(folder) for folder in folders], target)
    counts, _ = batch.counts()
    to_stderr(f"{counts.ended:,} of {batch.runs:,} {batch.unit}s in {target}")
    invocation: Invocation = context.obj
    invocation.outcome = outcome_of_batch(batch, counts)


schema_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@schema_app.command()
def batch() -> None:
    """Print the JSON Schema of the lines of results.jsonl."""
    print(json_text(batch_schema(json.loads(read_schema("result")))))
