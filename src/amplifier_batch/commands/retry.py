"""`amplifier batch retry`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending
from amplifier_app.base.stdio import claim_stdout, to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.runtime import describe
from amplifier_batch.execution.execute import execute
from amplifier_batch.execution.setup import reopen_request
from amplifier_batch.options import BatchOptions, FolderArgument, QuietOption
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import writing

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OUTCOMES = [ending.value for ending in Ending if ending is not Ending.OK]


@app.command()
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
