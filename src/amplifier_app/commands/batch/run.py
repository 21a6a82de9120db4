"""`amplifier batch run`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from amplifier_app.base.stdio import claimed_stdout
from amplifier_app.batch.input.rows import STDIN
from amplifier_app.batch.record.folder import BatchFolder, require_unused
from amplifier_app.commands.batch.execution.economy import require_batches
from amplifier_app.commands.batch.execution.execute import execute
from amplifier_app.commands.batch.execution.setup import (
    ROW_OPTIONS,
    AddressOption,
    Asked,
    DeadlineOption,
    EngineOption,
    MaxCostOption,
    StopAfterOption,
    WaitingOption,
    WorkersOption,
    check_economy,
    dollars_of,
    new_facts,
    plan_request,
    saved_stdin,
    shard_of,
)
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.request_options import takes_options_of
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_options_of(Request, *ROW_OPTIONS)
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
    folder: Annotated[
        Path,
        typer.Option(
            "--folder",
            "-o",
            metavar="FOLDER",
            rich_help_panel="What runs",
            help="Folder for the results; must be new or empty.",
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            rich_help_panel="What runs",
            help="The prompt; {{field}} is replaced by a field of the row. [default: the plan's, else the field 'prompt' "
            "of the row, or its line of text]",
        ),
    ] = None,
    workdir: Annotated[
        str,
        typer.Option(
            "--workdir",
            metavar="KIND[:PATH]",
            rich_help_panel="What runs",
            help="Where a row runs: 'same' folder for all, an empty one ('fresh'), or a 'copy' or git "
            "'clone' of PATH, which may have fields of the row.",
        ),
    ] = "same",
    request: Request,
    approve: Annotated[
        Literal["deny", "allow", "policy"],
        typer.Option(
            "--approve",
            rich_help_panel="Permissions",
            help="How to handle tool calls that need approval.",
        ),
    ] = "deny",
    workers: WorkersOption = None,
    max_cost: MaxCostOption = None,
    max_cost_row: Annotated[
        str | None,
        typer.Option(
            "--max-cost-row",
            metavar="DOLLARS",
            rich_help_panel="Limits",
            help="Stop a row when it has cost this much.",
        ),
    ] = None,
    stop_after: StopAfterOption = None,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat",
            min=1,
            max=1000,
            metavar="N",
            rich_help_panel="What runs",
            help="Run each row N times; reports then contain pass@k for k from 1 to N.",
        ),
    ] = 1,
    economy: Annotated[
        bool,
        typer.Option(
            "--economy",
            rich_help_panel="What runs",
            help="Get answers at the provider's batch price, about half, each within a day.",
        ),
    ] = False,
    deadline: DeadlineOption = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    waiting: WaitingOption = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="K/N",
            rich_help_panel="What runs",
            help="Run only the K-th of N parts of the rows; auto/N takes K from the index of this array job.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", rich_help_panel="Output", help="Show no progress.")
    ] = False,
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
    invocation.stdout = invocation.resources.enter_context(claimed_stdout())
    asked = Asked(workers, max_cost, stop_after, deadline, engine, address, waiting).checked()
    check_economy(asked, economy, engine)
    shard = shard_of(shard, os.environ)
    request = plan_request(plan, request, dollars_of(max_cost_row, "--max-cost-row"))
    request = request._replace(approve=approve)
    chosen = choose(request, invocation.stdout)
    if economy:
        require_batches(request, chosen)
    saved: Path | None = None
    if source == STDIN:
        require_unused(folder)
        source = saved = saved_stdin(folder)
    template = chosen.plan.data.get("prompt") if prompt is None else prompt
    try:
        facts = new_facts(
            request, chosen, source, template, shard, workdir, repeat, economy=economy
        )
    except BaseException:
        if saved is not None:
            saved.unlink(missing_ok=True)  # The folder can be used again.
        raise
    batch = BatchFolder.create(folder, facts, chosen.plan.to_yaml())
    invocation.outcome = execute(batch, request, asked, quiet=quiet)
