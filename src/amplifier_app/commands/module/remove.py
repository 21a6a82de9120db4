"""`amplifier module remove`: remove a module from every profile."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.commands.settings import modules as settings
from amplifier_app.commands.settings.scope import ScopeOption, changing, report

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def remove(
    module: Annotated[str, typer.Argument(metavar="ID", help="Id of the module.")],
    scope: ScopeOption = None,
) -> None:
    """Remove a module from every profile.

    \b
      amplifier module remove tool-web

    Deletes its entry in settings, or excludes it if a profile lists it. Without --scope, changes
    settings.yaml of the project, or outside a project your own settings.
    """
    with changing(scope, in_project="project") as where:
        report(settings.remove_module(module, where))
