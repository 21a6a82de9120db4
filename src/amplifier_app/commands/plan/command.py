"""`amplifier plan`: one module per command, imported when invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class PlanCommands(LazyGroup):
    """The commands of `amplifier plan`."""

    where: ClassVar[str] = "amplifier_app.commands.plan.{}"
    table: ClassVar[dict[str, str]] = {
        "check": "Check that everything in the plan loads, without asking a model.",
        "diff": "Show how two plans differ.",
        "explain": "Show where a value is set and what it replaced.",
        "import": "Convert a bundle and everything it includes to one plan.",
        "lock": "Pin every module of the plan to an exact version.",
        "schema": "Print the JSON Schema of plans.",
        "show": "Show the merged plan with secrets masked.",
    }


app = typer.Typer(
    cls=PlanCommands,
    help="Show, check, compare and lock plans.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def plan() -> None:
    """Show, check, compare and lock plans."""
