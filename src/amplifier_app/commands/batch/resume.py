"""`amplifier batch resume`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Annotated

import typer

from amplifier_app.base.stdio import claimed_stdout
from amplifier_app.batch.record.folder import BatchFolder
from amplifier_app.commands.batch.execution.execute import execute
from amplifier_app.commands.batch.execution.setup import (
    AddressOption,
    Asked,
    DeadlineOption,
    EngineOption,
    FolderArgument,
    MaxCostOption,
    StopAfterOption,
    WaitingOption,
    WorkersOption,
    check_economy,
    reopened,
)
from amplifier_app.commands.finish import Invocation

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def resume(
    context: typer.Context,
    folder: FolderArgument,
    workers: WorkersOption = None,
    max_cost: MaxCostOption = None,
    stop_after: StopAfterOption = None,
    deadline: DeadlineOption = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    waiting: WaitingOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Continue a batch that was interrupted or stopped.

    \b
      amplifier batch resume out
      amplifier batch resume out --max-cost 50

    Rows that have ended are not run again. An interrupted row continues its session: what it has done is
    not repeated.
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claimed_stdout())
    asked = Asked(workers, max_cost, stop_after, deadline, engine, address, waiting).checked()
    batch = BatchFolder(folder)
    economy = bool(batch.facts.get("economy"))
    check_economy(asked, economy, engine or batch.facts.get("engine"))
    request = reopened(batch, invocation.stdout)
    invocation.outcome = execute(batch, request, asked, quiet=quiet)
