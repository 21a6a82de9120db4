"""`amplifier session prune`."""

from __future__ import annotations

import time
from typing import Annotated, NamedTuple

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.session.shared import YesOption, confirm, from_index
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_app.sessions.metadata import time_text
from amplifier_app.sessions.removal import (
    remove_leftovers,
    remove_sessions,
    size_of,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class _Family(NamedTuple):
    """A session with its sub-sessions, the innermost first."""

    session: SessionSummary
    ids: list[str]
    updated: str
    size: int


@app.command()
def prune(
    older: Annotated[
        float | None,
        typer.Option(
            "--older",
            metavar="TIME",
            parser=lambda text: parse_duration(text, "--older"),
            help="Delete sessions last used longer ago than this: 12h, 30d, 8w.",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=0, metavar="N", help="Keep the N sessions last used."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = "text",
) -> None:
    """Delete old sessions of all directories, with their sub-sessions.

    \b
      amplifier session prune --older 30d --dry-run
      amplifier session prune --keep 100 --yes

    With both --older and --keep, a session is deleted if it is older and not among the N last
    used. Sessions that are in use or damaged are never deleted.
    """
    if older is None and keep is None:
        raise UsageError("nothing to prune by", hint="Pass --older 30d, --keep N or both.")
    store = SessionStore()
    families = _old_families(store, older, keep)
    if output == "json":
        found = [
            {"id": one.session.id, "deletes": one.ids, "updated": one.updated, "bytes": one.size}
            for one in families
        ]
        print(json_text(found))
    elif families:
        _print(families)
    total = describe.count(sum(len(one.ids) for one in families), "session")
    size = describe.size(sum(one.size for one in families))
    if not families:
        to_stderr("Nothing to delete.")
    elif dry_run:
        to_stderr(f"Would delete {total} ({size}).")
    elif confirm(f"Delete {total} ({size})?", yes):
        # Some may have been used while the question was open.
        now = {one.session.id: one.ids for one in _old_families(store, older, keep)}
        _remove(store, [one for one in families if now.get(one.session.id) == one.ids])
    else:
        to_stderr("Nothing was deleted.")


def _old_families(store: SessionStore, older: float | None, keep: int | None) -> list[_Family]:
    summaries = store.summaries()
    by_id = {summary.id: summary for summary in summaries}
    families: list[_Family] = []
    for summary in summaries:
        if summary.agent is not None and summary.parent in by_id:
            continue
        ids = with_sub_sessions(summary.id, summaries)
        updated = max(by_id[one].updated for one in ids if one in by_id)
        families.append(_Family(summary, ids, updated, 0))
    families.sort(key=lambda one: one.updated, reverse=True)
    families = families[keep or 0 :]
    if older is not None:
        limit = time_text(time.time() - older)
        families = [one for one in families if one.updated < limit]
    whole = [one for one in families if not any(by_id[member].fault for member in one.ids)]
    return [
        one._replace(size=sum(size_of(store.root / member) for member in one.ids)) for one in whole
    ]


def _print(families: list[_Family]) -> None:
    on_terminal = terminal_width(1) is not None
    columns = [
        Column("ID", fit="middle"),
        Column("LAST USED"),
        Column("SIZE", right=True),
        Column("AGENTS", drop=2),
        Column("TITLE", fit="end", drop=1),
    ]
    rows = [
        [
            one.session.id,
            describe.age(one.updated) if on_terminal else one.updated,
            describe.size(one.size),
            f"+{len(one.ids) - 1}" if len(one.ids) > 1 else "",
            one_line(one.session.about),
        ]
        for one in families
    ]
    print_table(columns, rows)


def _remove(store: SessionStore, families: list[_Family]) -> None:
    deleted = 0
    for family in families:
        try:
            remove_sessions(store.root, family.ids)
        except SessionError as error:
            to_stderr(f"amplifier: skipped {family.session.id}: {error.message}")
        else:
            deleted += len(family.ids)
    remove_leftovers(store.root)
    from_index(lambda index: index.forget_removed())
    to_stderr(f"Deleted {describe.count(deleted, 'session')}.")
