"""`amplifier module`: one file a command, imported when it is the one invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class ModuleCommands(LazyGroup):
    """The commands of `amplifier module`."""

    where: ClassVar[str] = "amplifier_app.commands.module.{}"
    table: ClassVar[dict[str, str]] = {
        "list": "List the modules of the plan and those that are there beside it.",
        "show": "Show where a module comes from and why, and what config it takes.",
        "add": "Have every profile use a module.",
        "remove": "Have no profile use a module.",
        "override": "Have a module come from another source, in every plan.",
        "update": "Fetch newer commits and versions of modules.",
        "vendor": "Copy the modules of a plan, with all they require, into a folder.",
        "new": "Make the package of a new module.",
        "validate": "Check a module against the contract of its kind.",
    }


app = typer.Typer(
    cls=ModuleCommands,
    help="List, choose, make and validate modules.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def module() -> None:
    """List, choose, make and validate modules."""
