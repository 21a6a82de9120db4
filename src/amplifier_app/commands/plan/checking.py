"""`amplifier plan check`."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
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
def check(
    *,
    context: typer.Context,
    request: Request,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Count the tokens of a request, by what adds them.")
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max", metavar="N", min=1, help="With --tokens: exit with 9 if it has more than N."
        ),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Fetch, install, import and mount everything the plan names, without asking a model.

    \b
      amplifier plan check
      amplifier plan check -f plan.yaml --locked
      amplifier plan check --tokens --max 10000
      amplifier plan check --output json

    Reports every problem at once. Exits with 78 if one of your files needs a fix, 2 if an option
    does, 3 if a module is at fault or --timeout is reached, 9 if --max is exceeded, otherwise 0. The
    modules run with your rights, as they do in a run. With --tokens the hooks of a prompt run, too.
    """
    invocation: Invocation = context.obj
    invocation.output = output
    if max_tokens is not None and not tokens:
        raise UsageError("--max needs --tokens")
    code = dry_run(request.validate(), invocation, weigh=tokens, max_tokens=max_tokens)
    raise typer.Exit(code)
