"""`amplifier provider`: one module per command, imported when invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class ProviderCommands(LazyGroup):
    """The commands of `amplifier provider`."""

    where: ClassVar[str] = "amplifier_app.commands.provider.{}"
    table: ClassVar[dict[str, str]] = {
        "list": "List providers and where each key comes from.",
        "test": "Test a provider with a one-word request.",
        "models": "List the models a provider offers.",
        "forget": "Remove the stored key of a provider.",
    }


app = typer.Typer(
    cls=ProviderCommands,
    help="List and test providers, their models and their keys.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def provider() -> None:
    """List and test providers, their models and their keys."""
