"""`amplifier session list|search|rename|delete|prune`."""

from __future__ import annotations

import itertools
import os
import time
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.paths import short_path, working_dir
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.answers import YesOption, confirm
from amplifier_app.commands.option import parse_duration
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.ansi import clip, fold, paint
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_app.sessions.background import describe_state
from amplifier_app.sessions.index import Index, Listed, Match, Page
from amplifier_app.sessions.removal import (
    measure_size,
    remove_leftovers,
    remove_sessions,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary, short_id, time_text
from amplifier_support.named_tuple import NamedTuple

_ON_A_TERMINAL = 20
_MAX_STATES = 100
"""Sessions of a list whose folders are looked into."""


def list_sessions(
    limit: Annotated[
        int | None,
        option(
            "-n, --limit N",
            "List at most N sessions; 0 lists all. [default: 20 on a terminal, otherwise all]",
            min=0,
        ),
    ] = None,
    everywhere: Annotated[
        bool, option("-a, --all", "Include sessions of other directories.")
    ] = False,
    project: Annotated[
        str | None, option("--project DIR", "List the sessions started in DIR.")
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
    _print_sessions(page.listed, everywhere, width)
    for line in _remarks(page, where):
        to_stderr(line)


def _with_sub_sessions(index: Index, page: Page) -> list[dict[str, Any]]:
    root = SessionStore().root
    return [
        {
            **session._asdict(),
            "state": describe_state(root / session.id) or None,
            "sub_sessions": [
                below._asdict()
                for below in (index.list_sub_sessions(session.id) if spawned else ())
            ],
        }
        for session, spawned in page.listed
    ]


def _print_sessions(listed: list[Listed], everywhere: bool, width: int | None) -> None:
    names = [short_id(entry.session.id) for entry in listed]
    rows: list[list[str]] = []
    for (session, spawned), name, state in zip(listed, names, _states(listed), strict=True):
        directory = one_line(session.project or "", 10_000) if everywhere else ""
        rows.append(
            [
                name if width is not None and names.count(name) == 1 else session.id,
                session.updated if width is None else describe.age(session.updated),
                "" if session.prompts is None else str(session.prompts),
                "" if session.cost is None else describe.cost(session.cost),
                f"+{spawned}" if spawned else "",
                state,
                one_line(session.about, 10_000),
                directory if width is None else short_path(directory),
                session.model or "",
            ]
        )
    columns = [
        Column("ID", fit="middle", least=8),
        Column("UPDATED" if width is None else "AGE"),
        Column("PROMPTS", right=True, drop=2),
        Column("COST", right=True, drop=3),
        Column("AGENTS", drop=4, optional=True),
        Column("STATE", optional=True),
        Column("TITLE", fit="end", least=36),
        Column("DIRECTORY", fit="middle", drop=5, least=16, optional=not everywhere),
        Column("MODEL", fit="end", drop=6),
    ]
    print_table(columns, rows)


def _states(listed: list[Listed]) -> list[str]:
    """The state of each session; looked up in the folders of the first ones only."""
    root = SessionStore().root
    states = [describe_state(root / entry.session.id) for entry in listed[:_MAX_STATES]]
    return [*states, *([""] * (len(listed) - len(states)))]


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


def search(
    words: Annotated[list[str], argument("WORDS", "Words to find; all of them must occur.")],
    limit: Annotated[
        int, option("-n, --limit N", "List at most N sessions; 0 lists all.", min=0)
    ] = 10,
    output: OutputOption = "text",
) -> None:
    """Search titles, prompts, answers and tool calls of all sessions.

    \b
      amplifier session search pytest fails
      amplifier session search "exit code" --output json

    A word also matches the beginning of a longer one. Exits with 1 if nothing is found.
    """
    text = " ".join(words).encode("utf-8", "replace").decode()
    if not text.strip():
        raise UsageError("no words to search for")
    result = from_index(lambda index: index.search(text, limit))
    snippets = ["".join(text for text, _ in match.snippet) for match in result.matches]
    if output == "json":
        pairs = zip(result.matches, snippets, strict=True)
        print(json_text([{**match.session._asdict(), "snippet": text} for match, text in pairs]))
    elif (width := terminal_width(1)) is not None:
        for match in result.matches:
            print("\n".join(_match_lines(match, width)))
    else:
        for match, snippet in zip(result.matches, snippets, strict=True):
            print(f"{match.session.id}: {one_line(snippet, 400)}")
    more = result.total - len(result.matches)
    if not result.total:
        to_stderr(f"no session contains {one_line(text)!r}")
        raise typer.Exit(1)
    if more and output == "text":
        to_stderr(f"{more:,} more: -n 0")


def _match_lines(match: Match, width: int) -> list[str]:
    session = match.session
    age = paint(f"  {describe.age(session.updated)}", "dim")
    head = f"{paint(short_id(session.id), 'bold')}  {one_line(session.about, 80)}{age}"
    snippet = "".join(
        # A line break in the text is shown as a space.
        paint(
            " ".join(one_line(f"|{text}|", 400)[1:-1].split("\n")),
            "bold yellow" if is_match else "dim",
        )
        for text, is_match in match.snippet
    )
    return [clip(head, width), *(f"    {row}" for row in fold(snippet, width - 4))]


def rename(
    session_id: SessionArgument,
    title: Annotated[list[str], argument("TITLE", "The new title.")],
) -> None:
    """Change a session's title. The first one is made from the first prompt."""
    text = one_line(redact(" ".join(title)))
    if not text:
        raise UsageError("the title is empty")
    session = SessionStore().find(session_id)
    session.rename(text)
    print(f'Renamed {session.id} to "{text}".')


def delete(
    session_ids: Annotated[
        list[str], argument("ID", "Session ids or prefixes, as in 'amplifier session list'.")
    ],
    yes: YesOption = False,
) -> None:
    """Delete sessions with everything stored for them: sub-sessions, logs, copies of files.

    \b
      amplifier session delete 1a2b3c
      amplifier session delete 1a2b3c 4d5e6f --yes

    A session that is in use is not deleted. Nothing outside its folder is touched.
    """
    store = SessionStore()
    summaries = store.summaries()
    by_id = {summary.id: summary for summary in summaries}
    groups = [with_sub_sessions(store.find(name).id, summaries) for name in session_ids]
    ids = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
    for session_id in reversed(ids):
        size = describe.size(measure_size(store.root / session_id))
        title = one_line(by_id[session_id].about, 60)
        to_stderr(f"  {session_id}  {title}  ({size})".replace("    ", "  "))
    if not confirm(f"Delete {describe.count(len(ids), 'session')}?", yes):
        to_stderr("Nothing was deleted.")
        return
    remove_sessions(store.root, ids)
    _forget_removed(store)
    print(f"Deleted {describe.count(len(ids), 'session')}.")


class _Family(NamedTuple):
    """A session with its sub-sessions, the innermost first."""

    session: SessionSummary
    ids: list[str]
    updated: str
    size: int


def prune(
    older: Annotated[
        float | None,
        option(
            "--older TIME",
            "Delete sessions last used longer ago than this: 12h, 30d, 8w.",
            parser=lambda text: parse_duration(text, "--older"),
        ),
    ] = None,
    keep: Annotated[int | None, option("--keep N", "Keep the N sessions last used.", min=0)] = None,
    dry_run: Annotated[
        bool, option("--dry-run", "List what would be deleted, and delete nothing.")
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
        data = [
            {
                "id": group.session.id,
                "deletes": group.ids,
                "updated": group.updated,
                "bytes": group.size,
            }
            for group in families
        ]
        print(json_text(data))
    else:
        _print_prune(families)
    total = describe.count(sum(len(family.ids) for family in families), "session")
    size = describe.size(sum(family.size for family in families))
    if not families:
        to_stderr("Nothing to delete.")
    elif dry_run:
        to_stderr(f"Would delete {total} ({size}).")
    elif confirm(f"Delete {total} ({size})?", yes):
        # Some may have been used while the question was open.
        now = {family.session.id: family.ids for family in _old_families(store, older, keep)}
        _prune(store, [family for family in families if now.get(family.session.id) == family.ids])
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
        updated = max(by_id[item].updated for item in ids if item in by_id)
        families.append(_Family(summary, ids, updated, 0))
    families.sort(key=lambda item: item.updated, reverse=True)
    families = families[keep or 0 :]
    if older is not None:
        limit = time_text(time.time() - older)
        families = [family for family in families if family.updated < limit]
    whole = [family for family in families if not any(by_id[member].fault for member in family.ids)]
    return [
        item._replace(size=sum(measure_size(store.root / member) for member in item.ids))
        for item in whole
    ]


def _print_prune(families: list[_Family]) -> None:
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
            family.session.id,
            describe.age(family.updated) if on_terminal else family.updated,
            describe.size(family.size),
            f"+{len(family.ids) - 1}" if len(family.ids) > 1 else "",
            one_line(family.session.about),
        ]
        for family in families
    ]
    print_table(columns, rows)


def _prune(store: SessionStore, families: list[_Family]) -> None:
    deleted = 0
    for family in families:
        try:
            remove_sessions(store.root, family.ids)
        except SessionError as error:
            to_stderr(f"amplifier: skipped {family.session.id}: {error.message}")
        else:
            deleted += len(family.ids)
    _forget_removed(store)
    to_stderr(f"Deleted {describe.count(deleted, 'session')}.")


def _forget_removed(store: SessionStore) -> None:
    remove_leftovers(store.root)
    from_index(lambda index: index.forget_removed())
