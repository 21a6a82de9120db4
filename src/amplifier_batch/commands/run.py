"""`amplifier batch run`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_batch.dispatch import OF_EVERY_ROW
from amplifier_batch.execution.economy import require_batches
from amplifier_batch.execution.execute import execute
from amplifier_batch.execution.setup import (
    naming_stdin,
    new_facts,
    plan_request,
    save_stdin,
)
from amplifier_batch.input.rows import STDIN
from amplifier_batch.input.shards import shard_of
from amplifier_batch.options import (
    ROW_OPTIONS,
    ApproveOption,
    BatchOptions,
    NewFolderOption,
    QuietOption,
    RowOptions,
    dollars_of,
)
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.new_folder import new_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
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
