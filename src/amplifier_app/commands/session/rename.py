"""`amplifier session rename`."""

from __future__ import annotations

from typing import Annotated

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.sessions.store import SessionStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def rename(
    session_id: SessionArgument,
    title: Annotated[list[str], typer.Argument(metavar="TITLE", help="The new title.")],
) -> None:
    """Change a session's title. The first one is made from the first prompt."""
    text = one_line(redact(" ".join(title)))
    if not text:
        raise UsageError("the title is empty")
    found = SessionStore().find(session_id)
    found.rename(text)
    print(f'Renamed {found.id} to "{text}".')
