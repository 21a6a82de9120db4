"""`amplifier session show`."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal, cast

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_pieces, json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.sanitize import for_pipe, for_terminal, one_line
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.render.table import Format, OutputOption
from amplifier_app.runtime.export.markdown import as_markdown
from amplifier_app.runtime.export.parts import (
    Heading,
    build_heading,
    build_parts,
    call_text,
    last_prompts,
)
from amplifier_app.runtime.observers.visibility import Shown, Visibility, find_mark, shown_blocks
from amplifier_app.sessions.conversation import Conversation, Step
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary

show_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@show_app.command()
def show(
    session_id: SessionArgument,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, metavar="N", help="Show the last N prompts only."),
    ] = None,
    call: Annotated[
        int | None,
        typer.Option(
            "--call", min=1, metavar="N", help="Show tool call N whole, with input and result."
        ),
    ] = None,
    up_to: Annotated[
        Literal["user", "developer", "internal"] | None,
        typer.Option(
            "--show",
            metavar="user|developer|internal",
            help="Show message blocks up to this visibility; 'internal' also unfolds the system "
            "prompt. [default: user]",
            show_default=False,
        ),
    ] = None,
    no_pager: Annotated[bool, typer.Option("--no-pager", help="Do not use a pager.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show a session's conversation.

    \b
      amplifier session show 1a2b3c --last 1
      amplifier session show 1a2b3c --call 7
      amplifier session show 1a2b3c > review.md
    """
    if last and call:
        raise UsageError("--last and --call are mutually exclusive")
    session = SessionStore().find(session_id)
    conversation = session.conversation()
    visibility = Visibility(up_to or _default_level())
    width = terminal_width(1)
    if call:
        _show_call(session, conversation, call, output, use_pager=not no_pager)
        return
    spawned = from_index(lambda index: index.list_sub_sessions(session.id))
    if output == "json":
        _print_json(session, spawned, visibility)
        return
    parts = build_parts(last_prompts(conversation, last or 0), visibility)
    heading = build_heading(session.id, session.metadata, conversation, age=width is not None)
    lines = [f"sub-session {one.id} ({one_line(one.about, 60)})" for one in spawned]
    heading = Heading(heading.title, heading.facts, lines)
    if width is None:
        show_paged(as_markdown(heading, parts))
        return
    from amplifier_app.render.conversation import as_ansi

    show_paged(as_ansi(heading, parts, width), use_pager=not no_pager)


def _show_call(
    found: SessionFolder,
    conversation: Conversation,
    number: int,
    output: Format,
    *,
    use_pager: bool,
) -> None:
    calls = (call for item in conversation if isinstance(item, Step) for call in item.calls)
    wanted, count = None, 0
    for call in calls:
        count += 1
        if call.number == number:
            wanted = call
            break
    if wanted is None:
        has = f"it has {count}" if count else "it has none"
        raise UsageError(f"session {found.id} has no tool call {number}; {has}")
    if output == "json":
        print(json_text(wanted._asdict()))
        return
    text = call_text(wanted) + "\n"
    sanitized = for_pipe(text) if terminal_width(1) is None else for_terminal(text)
    show_paged(sanitized, use_pager=use_pager)


def _print_json(
    found: SessionFolder, spawned: list[SessionSummary], visibility: Visibility
) -> None:
    messages = (_visible(message, visibility) for message in found.records().messages())
    ids = [session.id for session in spawned if session.parent == found.id]
    shown = {"metadata": found.metadata, "sub_sessions": ids, "messages": messages}
    show_paged(itertools.chain(json_pieces(shown), ["\n"]), use_pager=False)


def _visible(message: dict[str, Any], visibility: Visibility) -> dict[str, Any]:
    """A stored message without hidden blocks."""
    shown = dict(message)
    if isinstance(message.get("content"), list):
        shown["content"] = shown_blocks(message["content"], visibility)
    thought = message.get("thinking_block")
    if thought is not None and not visibility.shows("thinking", find_mark(thought)):
        del shown["thinking_block"]
    return shown


def _default_level() -> Shown:
    """The visibility level set in the user's settings."""
    return cast("Shown", read_settings().display.get("show") or "user")
