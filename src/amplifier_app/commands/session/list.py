"""`amplifier session list`."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.paths import short_path, working_dir
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.session.shared import from_index
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_app.sessions.index import Index, Listed, Page
from amplifier_app.sessions.summary import SessionSummary, short_id

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ON_A_TERMINAL = 20


@app.command("list")
def list_sessions(
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help="List at most N sessions; 0 lists all. [default: 20 on a terminal, otherwise all]",
            show_default=False,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", "-a", help="Include sessions of other directories.")
    ] = False,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="DIR", help="List the sessions started in DIR."),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """List saved sessions, most recent first.

    \b
      amplifier session list
      amplifier session list --output json

    Lists the sessions started in this directory. Sub-agents are counted with the session that
    started them.
    """
    if everywhere and project is not None:
        raise UsageError("--all and --project are mutually exclusive")
    where = None if everywhere else os.path.abspath(project) if project else working_dir()
    width = terminal_width(1)
    if limit is None:
        limit = _ON_A_TERMINAL if width is not None and output == "text" else 0
    if output == "json":
        listed = from_index(lambda index: _with_sub_sessions(index, index.page(where, limit)))
        print(json_text(listed))
        return
    page = from_index(lambda index: index.page(where, limit))
    if page.listed:
        print_table(_columns(page, everywhere, width), _rows(page.listed, everywhere, width))
    for line in _remarks(page, where):
        to_stderr(line)


def _with_sub_sessions(index: Index, page: Page) -> list[dict[str, Any]]:
    return [
        {
            **session._asdict(),
            "sub_sessions": [one._asdict() for one in index.sub_sessions_of(session.id)]
            if spawned
            else [],
        }
        for session, spawned in page.listed
    ]


def _columns(page: Page, everywhere: bool, width: int | None) -> list[Column]:
    agents = any(one.spawned for one in page.listed)
    return [
        Column("ID", fit="middle", least=8),
        Column("AGE" if width is not None else "UPDATED"),
        Column("PROMPTS", right=True, drop=2),
        Column("COST", right=True, drop=3),
        *([Column("AGENTS", drop=4)] if agents else []),
        Column("TITLE", fit="end", least=36),
        *([Column("DIRECTORY", fit="middle", drop=5, least=16)] if everywhere else []),
        Column("MODEL", fit="end", drop=6),
    ]


def _rows(listed: list[Listed], everywhere: bool, width: int | None) -> list[list[str]]:
    shown = [short_id(one.session.id) for one in listed] if width is not None else []
    agents = any(one.spawned for one in listed)
    rows: list[list[str]] = []
    for session, spawned in listed:
        short = short_id(session.id)
        is_clear = width is not None and shown.count(short) == 1
        rows.append(
            [
                short if is_clear else session.id,
                describe.age(session.updated) if width is not None else session.updated,
                "" if session.prompts is None else str(session.prompts),
                _cost(session),
                *([f"+{spawned}" if spawned else ""] if agents else []),
                one_line(session.about, 10_000),
                *([_directory(session.project, width)] if everywhere else []),
                session.model or "",
            ]
        )
    return rows


def _cost(session: SessionSummary) -> str:
    cost = session.cost
    return "" if cost is None else describe.cost(cost)


def _directory(project: str | None, width: int | None) -> str:
    text = one_line(project or "", 10_000)
    return text if width is None else short_path(text)


def _remarks(page: Page, where: str | None) -> list[str]:
    remarks: list[str] = []
    if not page.total:
        here = "this directory" if where == working_dir() else one_line(where or "", 1000)
        remarks.append(f"No saved sessions in {here}." if where else "No saved sessions.")
    more = page.total - len(page.listed)
    if more:
        remarks.append(f"{more:,} more: -n 0")
    if page.elsewhere:
        remarks.append(f"{page.elsewhere:,} in other directories: --all")
    return remarks
