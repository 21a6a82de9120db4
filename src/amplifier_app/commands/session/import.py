"""`amplifier session import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.stdio import to_stderr
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.sessions.bundle import import_bundle, read_bundle
from amplifier_app.sessions.store import SessionStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("import")
def import_sessions(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A bundle made by 'session export --bundle'.")
    ],
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Give the sessions new ids, for example for a copy.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Import a session with its sub-sessions.

    \b
      amplifier session import review.tar.gz

    The bundle is checked as a whole before anything is stored. Its plan is not used: to resume the
    session, choose a plan with --plan or --profile. Prints the session's id.
    """
    ids = import_bundle(SessionStore(), read_bundle(file), new_ids=new_ids)
    if output == "json":
        print(json_text({"id": ids[0], "sub_sessions": ids[1:]}))
        return
    print(ids[0])
    more = f" with {describe.count(len(ids) - 1, 'sub-session')}" if len(ids) > 1 else ""
    to_stderr(f"Imported{more}. Show it with: amplifier session show {ids[0]}")
