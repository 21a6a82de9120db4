"""`amplifier session export|import|resume|fork|prune|verify`."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from amplifier_app import __version__
from amplifier_app.base.atomic_write import write_new
from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_pieces, json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import Output, terminal_width, to_stderr
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.plan_options import takes_plan_options
from amplifier_app.commands.resume import app as resume_app
from amplifier_app.commands.run.choose import choose, fork_with
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.session.command import SessionArgument, YesOption, confirm, from_index
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.markdown import as_data, as_trajectory, session_markdown
from amplifier_app.runtime.export.parts import Exported, export_session, redactor
from amplifier_app.sessions.backups import Restore, plan_restore, restore
from amplifier_app.sessions.bundle import import_bundle, read_bundle, write_bundle
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.removal import (
    remove_leftovers,
    remove_sessions,
    size_of,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary, session_ids, time_text
from amplifier_app.sessions.verification import Finding, repair, verify

__all__ = ["resume_app"]


export_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@export_app.command()
def export(
    session_id: SessionArgument,
    md: Annotated[bool, typer.Option("--md", help="Markdown. [default]")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything stored, as JSON.")] = False,
    html: Annotated[
        bool, typer.Option("--html", help="One page with the conversation and a timeline.")
    ] = False,
    atif: Annotated[
        bool,
        typer.Option("--atif", help="A trajectory in the Agent Trajectory Interchange Format."),
    ] = False,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="An archive for 'session import'; needs --to.")
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", "-o", metavar="FILE", help="Write to a new file, not to stdout."),
    ] = None,
) -> None:
    """Export a session with its sub-sessions, without secrets.

    \b
      amplifier session export 1a2b3c > review.md
      amplifier session export 1a2b3c --html --to review.html
      amplifier session export 1a2b3c --bundle --to review.tar.gz

    Values of stored keys and secret variables, and everything that looks like a secret, are
    replaced by [REDACTED:…]. Look through the result before you share it.
    """
    wanted = {"--md": md, "--json": as_json, "--html": html, "--atif": atif, "--bundle": bundle}
    chosen = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(chosen) > 1:
        raise UsageError(f"{', '.join(chosen[:-1])} and {chosen[-1]} are mutually exclusive")
    if bundle and to is None:
        raise UsageError("--bundle needs a file", hint="Pass --to FILE.tar.gz")
    store = SessionStore()
    found = store.find(session_id)
    below = from_index(lambda index: index.sub_sessions_of(found.id))
    spawned = [SessionFolder(store.root / one.id) for one in below]
    redact = redactor().value
    if bundle and to is not None:
        write_bundle(to, [found, *spawned], redact, __version__)
        to_stderr(f"Written to {to}.")
        return
    exported, kind = export_session(found, spawned, redact), chosen[0] if chosen else "--md"
    if to is None:
        pieces = _pieces(exported, kind)
        safe = map(for_terminal, pieces) if sys.stdout.isatty() else pieces
        show_paged(safe, use_pager=False)
        return
    write_new(to, lambda: _pieces(exported, kind), mode=0o666)
    to_stderr(f"Written to {to}.")


def _pieces(session: Exported, kind: str) -> Iterable[str]:
    if kind == "--html":
        from amplifier_app.runtime.export.page import as_page  # Loads a Markdown parser.

        return as_page(session)
    if kind == "--md":
        return session_markdown(session)
    data: Any = as_data(session) if kind == "--json" else as_trajectory(session)
    return itertools.chain(json_pieces(data), ["\n"])


import_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@import_app.command("import")
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


fork_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@fork_app.command()
@takes_plan_options("plan", "provider", "model", "sets")
def fork(
    session_id: SessionArgument,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            min=1,
            metavar="STEP",
            help="Keep the conversation up to the end of this step. [default: all of it]",
            show_default=False,
        ),
    ] = None,
    *,
    files: Annotated[
        bool,
        typer.Option(
            "--files", help="Also restore the files that the session changed after this step."
        ),
    ] = False,
    yes: YesOption = False,
    output: OutputOption = "text",
    request: Request,
) -> None:
    """Start a new session from a step of another one, without asking a model.

    \b
      amplifier session fork 1a2b3c --at 4
      amplifier session fork 1a2b3c --at 4 --model claude-opus-5-5 --files
      amplifier run --fork 1a2b3c "Try it another way."

    The new session has the same conversation up to that step, byte for byte, and the plan of the
    other one unless you change it. Prints its id.
    """
    store = SessionStore()
    source = store.find(session_id)
    if files and at is None:
        raise UsageError("--files needs --at: files are restored to their state after a step")
    restoring = _restoring(source, at) if files and at is not None else []
    if restoring:
        _print_plan(restoring)
        count = sum(not one.reason for one in restoring)
        if count and not confirm(f"Change {describe.count(count, 'file')}?", yes):
            to_stderr("Nothing was done.")
            return
    new = _fork(source, at, request)
    restored = restore(source.path, restoring)
    if output == "json":
        _print_json(new, restored)
        return
    for one in restored:
        if one.reason and one not in restoring:
            to_stderr(f"amplifier: not restored: {one_line(one.path)}: {one.reason}")
    print(new.id)
    step = new.metadata["forked_from"]["step"]
    id = SessionStore().shortest_id(new.id)
    to_stderr(f"Forked {source.id} after step {step}. Resume with: amplifier run --resume {id}")


def _print_json(new: SessionFolder, restored: list[Restore]) -> None:
    files = [{"path": one.path, "action": one.action, "reason": one.reason} for one in restored]
    found = {"id": new.id, "forked_from": new.metadata["forked_from"], "files": files}
    print(json_text(found))


def _fork(source: SessionFolder, step: int | None, request: Request) -> SessionFolder:
    if not (request.plan or request.provider or request.model or request.sets):
        # The plan is not read: a fork needs nothing that the plan mentions.
        return fork_session(SessionStore(), source, step=step)
    chosen = choose(request._replace(resume=source.id), Output(2))
    return fork_with(chosen.plan, request, source, chosen.project, step)


def _restoring(source: SessionFolder, step: int) -> list[Restore]:
    project = source.metadata.get("project")
    if not isinstance(project, str):
        raise UsageError(f"session {source.id} does not record the directory it worked in")
    return plan_restore(source.path, source.conversation(), step, project)


def _print_plan(restoring: list[Restore]) -> None:
    for one in restoring:
        reason = f": {one.reason}" if one.reason else ""
        to_stderr(f"  {one.action:<8} {one_line(one.path)}{reason}")


prune_app = typer.Typer(add_completion=False, rich_markup_mode=None)


class _Family(NamedTuple):
    """A session with its sub-sessions, the innermost first."""

    session: SessionSummary
    ids: list[str]
    updated: str
    size: int


@prune_app.command()
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


verify_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@verify_app.command("verify")
def verify_sessions(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Session ids. [default: all]", show_default=False),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option("--repair", help="Repair what can be repaired; damaged files are kept."),
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Check saved sessions for damage.

    \b
      amplifier session verify
      amplifier session verify 1a2b3c --repair

    Exits with 6 if a session cannot be resumed as it is. A session in use is not repaired.
    """
    store = SessionStore()
    chosen = [store.find(one).id for one in ids] if ids else sorted(session_ids(store.root))
    results = {one: verify(store.root / one) for one in chosen}
    results = {one: findings for one, findings in results.items() if findings}
    repaired: dict[str, list[Finding]] = {}
    for session_id, findings in results.items() if fix else ():
        try:
            left = repair(store.root / session_id, findings)
        except SessionError as error:
            to_stderr(f"amplifier: not repaired: {error.message}")
            continue
        problems = {one.problem for one in left}
        repaired[session_id] = [one for one in findings if one.problem not in problems]
        results[session_id] = left
    if fix:
        remove_leftovers(store.root)
    from_index(lambda index: None)
    if output == "json":
        print(json_text(_as_data(results, repaired)))
    else:
        _print_verify(results, repaired, len(chosen))
    if any(one.is_error for findings in results.values() for one in findings):
        raise typer.Exit(6)


def _as_data(
    results: dict[str, list[Finding]], repaired: dict[str, list[Finding]]
) -> list[dict[str, Any]]:
    return [
        {
            "id": session_id,
            "problems": [
                {
                    "problem": one.problem,
                    "error": one.is_error,
                    "repairable": one.repair is not None,
                    "hint": one.hint or None,
                }
                for one in findings
            ],
            "repaired": [one.problem for one in repaired.get(session_id, [])],
        }
        for session_id, findings in results.items()
    ]


def _print_verify(
    results: dict[str, list[Finding]], repaired: dict[str, list[Finding]], checked: int
) -> None:
    can_repair = 0
    for session_id, findings in results.items():
        for one in repaired.get(session_id, []):
            print(f"{session_id}: repaired: {one.problem}")
        for one in findings:
            can_repair += one.repair is not None
            print(f"{session_id}: {'error' if one.is_error else 'warning'}: {one.problem}")
            if one.hint:
                print(f"  {one.hint}")
    left = sum(bool(findings) for findings in results.values())
    to_stderr(f"{describe.count(checked, 'session')} checked, {left} with problems.")
    if can_repair:
        to_stderr("Repair what can be repaired: amplifier session verify --repair")
