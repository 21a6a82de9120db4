"""`amplifier plan check`."""

from __future__ import annotations

import typer

from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.dry_run import dry_run
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options
from amplifier_app.render.table import OutputOption

check_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_OPTIONS = (
    *("profile", "plan", "provider", "model", "sets"),
    *("timeout", "locked", "lock", "offline", "trust", "no_project"),
)


@check_app.command()
@takes_options(Request, *_OPTIONS)
def check(context: typer.Context, request: Request, output: OutputOption = "text") -> None:
    """Fetch, install, import and mount everything the plan names, without asking a model.

    \b
      amplifier plan check
      amplifier plan check -f plan.yaml --locked
      amplifier plan check --output json

    Reports every problem at once. Exits with 78 if one of your files needs a fix, 2 if an option
    does, 3 if a module is at fault or --timeout is reached, otherwise 0. The modules run with your rights, as they do in a run.
    """
    invocation: Invocation = context.obj
    invocation.output = output
    raise typer.Exit(dry_run(request.validate(), invocation))
