"""`amplifier module override`: where a module comes from, whatever a plan says."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.settings.scope import ScopeOption, changing, tell

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def override(
    module: Annotated[str, typer.Argument(metavar="ID", help="Id of the module.")],
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="Where it comes from.", show_default=False),
    ] = None,
    scope: ScopeOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the override back.")] = False,
) -> None:
    """Have a module come from another source, in every plan: a line under `sources:` in settings.

    Without --scope the settings are settings.local.yaml of the project, else the user's own.
    """
    if remove == (source is not None):
        raise UsageError("give a SOURCE or --remove, one of them")
    from amplifier_app.commands.settings import modules as settings

    with changing(scope, in_project="local") as where:
        if source is None:
            tell(settings.remove_override(module, where))
        else:
            tell(settings.override_source(module, source, where))
