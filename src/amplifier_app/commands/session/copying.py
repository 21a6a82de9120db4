"""`amplifier session export|import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from amplifier_app import __version__
from amplifier_app.base.errors import UsageError
from amplifier_app.base.file_writing import write_new
from amplifier_app.base.json_text import json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.markdown import export_pieces
from amplifier_app.runtime.export.parts import export_session, redactor
from amplifier_app.sessions.bundle import import_bundle, read_bundle, write_bundle
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import find_continuation
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import short_id

_FORMS = {".html": "html", ".json": "json", ".gz": "bundle", ".tgz": "bundle"}
"""The form that the extension of a file selects."""


def export(
    session_id: SessionArgument,
    md: Annotated[bool, option("--md", "Markdown. [default]")] = False,
    as_json: Annotated[bool, option("--json", "Everything stored, as JSON.")] = False,
    html: Annotated[
        bool, option("--html", "One page with the conversation and a timeline.")
    ] = False,
    atif: Annotated[
        bool, option("--atif", "A trajectory in the Agent Trajectory Interchange Format.")
    ] = False,
    bundle: Annotated[
        bool, option("--bundle", "An archive for 'session import'; needs --to.")
    ] = False,
    to: Annotated[
        Path | None,
        option(
            "-o, --to FILE",
            "Write to a new file, not to stdout; .html, .json and .tar.gz select their form.",
        ),
    ] = None,
) -> None:
    """Export a session with its sub-sessions, without secrets.

    \b
      amplifier session export 1a2b3c > review.md
      amplifier session export 1a2b3c --to review.html
      amplifier session export 1a2b3c --to review.tar.gz

    Values of stored keys and secret variables, and everything that looks like a secret, are
    replaced by [REDACTED:…]. Look through the result before you share it.
    """
    formats = {"--md": md, "--json": as_json, "--html": html, "--atif": atif, "--bundle": bundle}
    chosen = [name for name, is_wanted in formats.items() if is_wanted]
    if len(chosen) > 1:
        raise UsageError(f"{', '.join(chosen[:-1])} and {chosen[-1]} are mutually exclusive")
    form = chosen[0][2:] if chosen else _FORMS.get("" if to is None else to.suffix.lower(), "md")
    if bundle and to is None:
        raise UsageError("--bundle needs a file", hint="Pass --to FILE.tar.gz")
    store = SessionStore()
    session = store.find(session_id)
    below = from_index(lambda index: index.list_sub_sessions(session.id))
    spawned = [SessionFolder(store.root / summary.id) for summary in below]
    redact = redactor().value
    if form == "bundle" and to is not None:
        write_bundle(to, [session, *spawned], redact, __version__)
        to_stderr(f"Written to {to}.")
        return
    exported = export_session(session, spawned, redact)
    continued = find_continuation(store, session) if atif else None
    if to is None:
        pieces = export_pieces(exported, form, continued)
        safe = map(for_terminal, pieces) if sys.stdout.isatty() else pieces
        show_paged(safe, use_pager=False)
        return
    write_new(to, lambda: export_pieces(exported, form, continued), mode=0o666)
    to_stderr(f"Written to {to}.")


def import_sessions(
    file: Annotated[Path, argument("FILE", "A bundle made by 'session export --bundle'.")],
    new_ids: Annotated[
        bool, option("--new-ids", "Give the sessions new ids, for example for a copy.")
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
    to_stderr(f"Imported{more}. Show it with: amplifier session show {short_id(ids[0])}")
