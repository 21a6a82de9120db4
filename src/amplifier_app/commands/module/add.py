"""`amplifier module add`: a module for every profile."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.commands.settings import modules as settings
from amplifier_app.commands.settings.scope import ScopeOption, changing, report
from amplifier_core.discovery import kind_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)


Kind = Literal["tool", "hook", "provider"]
"""The kinds of which a plan can have any number of modules."""


@app.command()
def add(
    module: Annotated[str, typer.Argument(metavar="ID", help="Id of the module.")],
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", metavar="SOURCE", help="Where to load it from."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--type", "-t", help="Module type. [default: guessed from the id]"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Configuration; repeatable."),
    ] = None,
    scope: ScopeOption = None,
) -> None:
    """Add a module to every profile (through your settings).

    \b
      amplifier module add tool-web
      amplifier module add my-tool --source ./my-tool

    Without --scope, changes settings.yaml of the project, or outside a project your own settings.
    """
    chosen = kind or _kind(module)
    values = settings.config_of(config or [])
    with changing(scope, in_project="project") as where:
        report(settings.add_module(module, chosen, where, source=source, config=values))


def _kind(module: str) -> str:
    kind = kind_of(module)
    if kind not in get_args(Kind):
        raise UsageError(
            f"{module} looks like a module of type {kind!r}, of which a plan has only one",
            hint=f"Set it under 'session: {{{kind}: …}}', or pass --type.",
        )
    return kind
