"""`amplifier module add|remove|override`: modules of every profile."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from amplifier_app.base.errors import UsageError
from amplifier_app.commands import settings
from amplifier_app.commands.settings import ScopeOption, changing, report
from amplifier_app.commands.typer_options import argument, option
from amplifier_core.module_sources import find_kind

Kind = Literal["tool", "hook", "provider"]
"""The kinds of which a plan can have any number of modules."""


def add(
    module: Annotated[str, argument("ID", "Id of the module.")],
    source: Annotated[str | None, option("-s, --source SOURCE", "Where to load it from.")] = None,
    kind: Annotated[
        Kind | None, option("-t, --type", "Module type. [default: guessed from the id]")
    ] = None,
    config: Annotated[
        list[str] | None, option("-c, --config KEY=VALUE", "Configuration; repeatable.")
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
    values = settings.parse_config(config or [])
    with changing(scope, in_project="project") as where:
        report(settings.add_module(module, chosen, where, source=source, config=values))


def _kind(module: str) -> str:
    kind = find_kind(module)
    if kind not in get_args(Kind):
        raise UsageError(
            f"{module} looks like a module of type {kind!r}, of which a plan has only one",
            hint=f"Set it under 'session: {{{kind}: …}}', or pass --type.",
        )
    return kind


def remove(
    module: Annotated[str, argument("ID", "Id of the module.")],
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


def override(
    module: Annotated[str, argument("ID", "Id of the module.")],
    source: Annotated[str | None, argument("SOURCE", "Where to load it from.")] = None,
    scope: ScopeOption = None,
    remove: Annotated[bool, option("--remove", "Remove the override.")] = False,
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
