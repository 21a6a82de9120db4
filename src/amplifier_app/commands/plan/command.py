"""`amplifier plan`: one file a command, imported when it is the one invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class PlanCommands(LazyGroup):
    """The commands of `amplifier plan`."""

    where: ClassVar[str] = "amplifier_app.commands.plan.{}"
    table: ClassVar[dict[str, str]] = {
        "check": "Fetch and mount everything the plan names, and ask no model.",
        "diff": "Show how two plans differ.",
        "explain": "Show where a value of the plan is from, and what it replaced.",
        "import": "Write a bundle and all it includes as one plan.",
        "lock": "Write down what each module of the plan is exactly.",
        "schema": "Print the JSON Schema of plans, for editors.",
        "show": "Show the plan with everything it extends; secrets are masked.",
    }


app = typer.Typer(
    cls=PlanCommands,
    help="Show and check plans.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def plan() -> None:
    """Show and check plans."""
