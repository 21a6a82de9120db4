"""`amplifier batch run|resume|retry`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.stdio import Output, claim_stdout, to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.runtime import describe
from amplifier_batch.commands.tables import give_scores, open_scoring
from amplifier_batch.dispatch import OF_EVERY_ROW
from amplifier_batch.execution.execute import execute
from amplifier_batch.execution.setup import (
    naming_stdin,
    new_facts,
    plan_request,
    reopen_request,
    require_batches,
    save_input,
    save_stdin,
)
from amplifier_batch.input import STDIN, choose_shard
from amplifier_batch.options import (
    ROW_OPTIONS,
    ApproveOption,
    BatchOptions,
    FolderArgument,
    NewRecordOption,
    QuietOption,
    RowOptions,
    TakeOverOption,
    WhereOption,
    parse_dollars,
)
from amplifier_batch.record.folder import BatchFolder, new_folder, read_copy
from amplifier_batch.record.remote import driving, removing_unbegun
from amplifier_batch.record.writer import writing
from amplifier_batch.table import Table, Where


@takes_options(RowOptions)
@takes_options(Request, *ROW_OPTIONS)
@takes_options(BatchOptions)
def run(
    context: typer.Context,
    plan: Annotated[str, argument("PLAN", "Plan file, or name of a profile.")],
    source: Annotated[
        Path,
        argument(
            "INPUT",
            "The rows: .jsonl, .json, .csv, .tsv, .parquet, lines of text, a folder, a pattern in quotes, "
            "or - for stdin.",
        ),
    ],
    *,
    folder: NewRecordOption,
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
    options.validate().check_engine(row.economy, options.engine, approve)
    if approve == "park" and read_copy(folder):
        raise UsageError(
            "--approve park and a URL are mutually exclusive",
            hint="An answer counts only on the machine of the user who gives it.",
        )
    row = row._replace(shard=choose_shard(row.shard, os.environ))
    request = plan_request(plan, request, parse_dollars(row.max_cost_row, "--max-cost-row"))
    request = request._replace(approve=approve)
    chosen = choose(request, invocation.stdout)
    if row.economy:
        require_batches(request, chosen)
    with removing_unbegun(folder), new_folder(folder) as remove_folder:
        if source == STDIN:
            source = save_stdin(folder)
            with naming_stdin(source):
                facts = new_facts(request, chosen, source, row)
        else:
            facts = new_facts(request, chosen, source, row)
            if read_copy(folder):
                if not quiet:
                    to_stderr(f"working copy: {folder}")
                facts["input"] = str(save_input(folder, source))
        batch = BatchFolder.create(folder, facts, chosen.plan.to_yaml())
        with driving(batch):
            invocation.outcome = _execute(batch, request, chosen, options, quiet)
        if invocation.outcome.ending in OF_EVERY_ROW:
            remove_folder()


def _execute(
    batch: BatchFolder, request: Request, chosen: Chosen, options: BatchOptions, quiet: bool
) -> Outcome:
    """Run the rows, then score the answers, if the batch has scores and was not stopped."""
    # Before the rows: a scorer that cannot be loaded is an error at once, and the plan may be edited meanwhile.
    scoring = open_scoring(batch, request, chosen)
    outcome = execute(batch, request, options, quiet=quiet)
    is_stopped = outcome.ending in (Ending.INTERRUPTED, Ending.TERMINATED, *OF_EVERY_ROW)
    if scoring is not None and not is_stopped:
        new, judges = give_scores(batch, scoring, quiet=quiet)
        given = f"{describe.count(new, 'score')} given" if new else ""
        if (parts := [*filter(None, (given, judges))]) and not quiet:
            to_stderr(" · ".join(parts))
    return outcome


def _reopen(
    invocation: Invocation, folder: Path, options: BatchOptions
) -> tuple[BatchFolder, Request, Output]:
    """Open a batch to continue it, with what its rows need."""
    stdout = invocation.stdout = invocation.resources.enter_context(claim_stdout())
    batch = BatchFolder(folder)
    request = reopen_request(batch, stdout)
    economy, engine = bool(batch.facts.get("economy")), options.engine or batch.facts.get("engine")
    options.validate().check_engine(economy, engine, request.approve)
    return batch, request, stdout


@takes_options(BatchOptions)
def resume(
    context: typer.Context,
    folder: FolderArgument,
    take_over: TakeOverOption = False,
    *,
    options: BatchOptions,
    quiet: QuietOption = False,
) -> None:
    """Continue a batch that was interrupted or stopped.

    \b
      amplifier batch resume out
      amplifier batch resume out --max-cost 50

    Rows that have ended are not run again. An interrupted row continues its session: what it has done is
    not repeated. A row that waits for approval goes on once its questions are answered: amplifier batch approve
    """
    invocation: Invocation = context.obj
    batch, request, stdout = _reopen(invocation, folder, options)
    chosen = choose(request, stdout)
    with driving(batch, take_over=take_over):
        invocation.outcome = _execute(batch, request, chosen, options, quiet)


def _select(batch: BatchFolder, where: str) -> set[tuple[int, int]]:
    """The number and repeat of the runs that meet a condition."""
    table = Table(batch)
    return {(cells["number"], cells["repeat"]) for cells in table.rows(Where(where, table.columns))}


_OUTCOMES = [ending.value for ending in Ending if ending not in (Ending.OK, Ending.WAITING)]


@takes_options(BatchOptions)
def retry(
    context: typer.Context,
    folder: FolderArgument,
    only: Annotated[
        str | None,
        option(
            "--only OUTCOMES",
            "Only rows with these outcomes, separated by commas, such as provider,budget. "
            "[default: all that failed]",
        ),
    ] = None,
    where: WhereOption = None,
    take_over: TakeOverOption = False,
    *,
    options: BatchOptions,
    quiet: QuietOption = False,
) -> None:
    """Run the failed rows again, and those that have not ended.

    \b
      amplifier batch retry out
      amplifier batch retry out --only provider,unavailable
      amplifier batch retry out --where "answered_model!=claude-opus-5-5"

    With --where alone, rows that passed run again, too. A row that reached a limit or waits for approval
    continues its session; any other begins a new one.
    """
    invocation: Invocation = context.obj
    outcomes = set(_OUTCOMES if only is None else only.split(","))
    if unknown := outcomes.difference(_OUTCOMES):
        raise UsageError(
            f"--only: unknown outcome {sorted(unknown)[0]!r}",
            hint=f"Outcomes: {', '.join(_OUTCOMES)}",
        )
    batch, request, stdout = _reopen(invocation, folder, options)
    with driving(batch, take_over=take_over):
        selected = None if where is None else _select(batch, where)
        with writing(batch) as writer:
            number = writer.reopen(
                lambda result: (
                    (result["outcome"] in outcomes or (only is None and selected is not None))
                    and (selected is None or (result["number"], result["repeat"]) in selected)
                )
            )
        if not quiet:
            to_stderr(f"{describe.count(number, 'row') if number else 'no rows'} to run again")
        invocation.outcome = _execute(batch, request, choose(request, stdout), options, quiet)
