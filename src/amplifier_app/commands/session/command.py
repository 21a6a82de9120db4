"""`amplifier session`: one module per command, imported when invoked."""

from __future__ import annotations

from typing import ClassVar

import typer

from amplifier_app.commands.group import LazyGroup


class SessionCommands(LazyGroup):
    """The commands of `amplifier session`."""

    where: ClassVar[str] = "amplifier_app.commands.session.{}"
    table: ClassVar[dict[str, str]] = {
        "list": "List saved sessions.",
        "search": "Search the text of all sessions.",
        "show": "Show a session's conversation, or one tool call.",
        "export": "Export a session as Markdown, JSON, HTML, ATIF or a bundle.",
        "import": "Import a bundle.",
        "fork": "Start a new session from a step of another one.",
        "rename": "Change a session's title.",
        "delete": "Delete sessions and their sub-sessions.",
        "prune": "Delete old sessions.",
    }


app = typer.Typer(
    cls=SessionCommands,
    help="List, show, search and manage saved sessions.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def session() -> None:
    """List, show, search and manage saved sessions."""
