"""`amplifier batch resume`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import typer

from amplifier_app.base.stdio import claim_stdout
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_batch.execution.execute import execute
from amplifier_batch.execution.setup import reopen_request
from amplifier_batch.options import BatchOptions, FolderArgument, QuietOption
from amplifier_batch.record.folder import BatchFolder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
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
