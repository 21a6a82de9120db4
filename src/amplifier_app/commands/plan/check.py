"""`amplifier plan check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import (
    ModelOption,
    PlanOption,
    ProfileOption,
    ProviderOption,
    SetOption,
)
from amplifier_app.render.table import Format, OutputOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def check(
    context: typer.Context,
    profile: ProfileOption = None,
    plan: PlanOption = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    sets: SetOption = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Hold the modules to what the plan's lock says.")
    ] = False,
    lock: Annotated[
        Path | None,
        typer.Option("--lock", metavar="FILE", help="The same with the lock in this file."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch nothing.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Trust the project's .amplifier folder for this check.")
    ] = False,
    no_project: Annotated[
        bool, typer.Option("--no-project", help="Leave the project's .amplifier folder out.")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Fetch, install, import and mount everything the plan names, and ask no model.

    Tells all that is wrong at once. Exit code 0, 78 if a file of yours has to be mended, 3 if a
    module is at fault. The modules run with your rights, as they do in a run.
    """
    if trust and no_project:
        raise UsageError("--trust and --no-project exclude each other")
    from amplifier_app.commands.run.dry_run import dry_run
    from amplifier_app.commands.run.request import Request

    invocation: Invocation = context.obj
    invocation.output = output.value
    request = Request(
        profile=profile,
        plan=plan,
        provider=provider,
        model=model,
        sets=tuple(sets or ()),
        locked=locked or lock is not None,
        lock=lock,
        offline=offline,
        trust=trust,
        no_project=no_project,
    )
    raise typer.Exit(dry_run(request, invocation))
