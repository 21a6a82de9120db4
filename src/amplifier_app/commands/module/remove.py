"""`amplifier module remove`: no profile uses a module any more."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.commands.settings.scope import ScopeOption, changing, tell

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def remove(
    module: Annotated[str, typer.Argument(metavar="ID", help="Id of the module.")],
    scope: ScopeOption = None,
) -> None:
    """Have no profile use a module: without its entry in settings, else excluded by them.

    Without --scope the settings are settings.yaml of the project, else the user's own.
    """
    from amplifier_app.commands.settings import modules as settings

    with changing(scope, in_project="project") as where:
        tell(settings.remove_module(module, where))
