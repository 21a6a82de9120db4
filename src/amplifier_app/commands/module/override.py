"""`amplifier module override`: load a module from a different source."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.settings import modules as settings
from amplifier_app.commands.settings.scope import ScopeOption, changing, report

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def override(
    module: Annotated[str, typer.Argument(metavar="ID", help="Id of the module.")],
    source: Annotated[
        str | None,
        typer.Argument(metavar="SOURCE", help="Where to load it from.", show_default=False),
    ] = None,
    scope: ScopeOption = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the override.")] = False,
) -> None:
    """Load a module from a different source in every plan (`sources:` in settings).

    \b
      amplifier module override tool-web ../my-fork
      amplifier module override tool-web --remove

    Without --scope, changes settings.local.yaml of the project, or outside a project your own
    settings.
    """
    if remove == (source is not None):
        raise UsageError("expected either a SOURCE or --remove")
    with changing(scope, in_project="local") as where:
        if source is None:
            report(settings.remove_override(module, where))
        else:
            report(settings.override_source(module, source, where))
