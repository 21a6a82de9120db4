"""`amplifier policy`: one module per command, imported when invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class PolicyCommands(LazyGroup):
    """The commands of `amplifier policy`."""

    where: ClassVar[str] = "amplifier_app.commands.policy.{}"
    table: ClassVar[dict[str, str]] = {
        "test": "Show the decision on a tool call, and the rule that made it.",
        "replay": "Apply the rules to the tool calls of saved sessions.",
        "suggest": "Print the rules that allow what a session did.",
    }


app = typer.Typer(
    cls=PolicyCommands,
    help="Test the rules for tool calls.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def policy() -> None:
    """Test the rules for tool calls."""
