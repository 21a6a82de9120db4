"""`amplifier tool`: the tools of a plan, without a model."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class ToolCommands(LazyGroup):
    """The commands of `amplifier tool`."""

    where: ClassVar[str] = "amplifier_app.commands.tool.{}"
    table: ClassVar[dict[str, str]] = {
        "list": "List the tools of the plan.",
        "info": "Show what a tool does and the input it takes.",
        "invoke": "Run a tool with JSON input, under the plan's approval rules.",
    }


app = typer.Typer(
    cls=ToolCommands,
    help="List, describe and run the tools of a plan.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def tool() -> None:
    """List, describe and run the tools of a plan."""
