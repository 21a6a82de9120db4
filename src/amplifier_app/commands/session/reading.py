"""`amplifier session show|diff`."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_pieces, json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.sanitize import for_pipe, for_terminal, one_line
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.render.ansi import paint
from amplifier_app.render.table import Format, OutputOption
from amplifier_app.runtime import describe
from amplifier_app.runtime.export.markdown import as_markdown
from amplifier_app.runtime.export.parts import (
    Heading,
    build_heading,
    build_parts,
    call_text,
    last_prompts,
)
from amplifier_app.runtime.observers.visibility import Shown, Visibility, find_mark, shown_blocks
from amplifier_app.sessions.conversation import Comparison, Conversation, Item, Step, compare
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary
from amplifier_support.files import read_regular


def show(
    session_id: SessionArgument,
    last: Annotated[int | None, option("--last N", "Show the last N prompts only.", min=1)] = None,
    call: Annotated[
        int | None, option("--call N", "Show tool call N whole, with input and result.", min=1)
    ] = None,
    up_to: Annotated[
        Literal["user", "developer", "internal"] | None,
        option(
            "--show user|developer|internal",
            "Show message blocks up to this visibility; 'internal' also shows the system "
            "prompt. [default: user]",
        ),
    ] = None,
    no_pager: Annotated[bool, option("--no-pager", "Do not use a pager.")] = False,
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
    visibility = Visibility(up_to or cast("Shown", read_settings().display.get("show") or "user"))
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
    lines = [f"sub-session {summary.id} ({one_line(summary.about, 60)})" for summary in spawned]
    heading = Heading(heading.title, heading.facts, lines)
    if width is None:
        show_paged(as_markdown(heading, parts))
        return
    from amplifier_app.render.conversation import as_ansi

    show_paged(as_ansi(heading, parts, width), use_pager=not no_pager)


def _show_call(
    folder: SessionFolder,
    conversation: Conversation,
    number: int,
    output: Format,
    *,
    use_pager: bool,
) -> None:
    calls = (call for item in conversation if isinstance(item, Step) for call in item.calls)
    match, count = None, 0
    for call in calls:
        count += 1
        if call.number == number:
            match = call
            break
    if match is None:
        has = f"it has {count}" if count else "it has none"
        raise UsageError(f"session {folder.id} has no tool call {number}; {has}")
    if output == "json":
        print(json_text(match._asdict()))
        return
    text = call_text(match) + "\n"
    sanitized = for_pipe(text) if terminal_width(1) is None else for_terminal(text)
    show_paged(sanitized, use_pager=use_pager)


def _print_json(
    folder: SessionFolder, spawned: list[SessionSummary], visibility: Visibility
) -> None:
    messages = (_visible(message, visibility) for message in folder.records().messages())
    ids = [session.id for session in spawned if session.parent == folder.id]
    data = {"metadata": folder.metadata, "sub_sessions": ids, "messages": messages}
    show_paged(itertools.chain(json_pieces(data), ["\n"]), use_pager=False)


def _visible(message: dict[str, Any], visibility: Visibility) -> dict[str, Any]:
    """A stored message without hidden blocks."""
    result = dict(message)
    if isinstance(message.get("content"), list):
        result["content"] = shown_blocks(message["content"], visibility)
    thought = message.get("thinking_block")
    if thought is not None and not visibility.shows("thinking", find_mark(thought)):
        del result["thinking_block"]
    return result


_CONTEXT_LINES = 3
_EVERYTHING = Visibility("internal")
"""Whatever differs is shown, also if it is the system prompt."""


def diff(
    left: Annotated[str, argument("A", "Session id, as in 'amplifier session list'.")],
    right: Annotated[str, argument("B", "Another one, such as a fork.")],
    no_pager: Annotated[bool, option("--no-pager", "Do not use a pager.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show where two sessions diverge and what differs after.

    \b
      amplifier session diff 1a2b3c 4d5e6f

    Ids, times and usage are not compared. Exits with 0 if the sessions are the same, else 1.
    """
    store = SessionStore()
    first, second = store.find(left), store.find(right)
    compared = compare(first.conversation(), second.conversation())
    is_same = not compared.left and not compared.right
    if output == "json":
        print(json_text(_as_data(first, second, compared)))
    elif is_same:
        print(f"{first.id} and {second.id} are the same.")
    else:
        on_terminal = terminal_width(1) is not None
        lines = [_where(compared), *_plan_lines(first, second), *_lines(first, second, compared)]
        safe = [for_terminal(line) if on_terminal else for_pipe(line) for line in lines]
        text = "\n".join(_coloured(line) for line in safe) if on_terminal else "\n".join(safe)
        show_paged(text + "\n", use_pager=not no_pager)
    raise typer.Exit(0 if is_same else 1)


def _where(compared: Comparison) -> str:
    step = compared.last_common_step
    if not compared.common:
        return "The sessions have nothing in common."
    same = describe.count(compared.common, "message")
    after = f" and part after step {step}" if step else ""
    return f"The sessions begin with the same {same}{after}."


def _plan_lines(first: SessionFolder, second: SessionFolder) -> list[str]:
    left, right = _plan(first), _plan(second)
    names = (f"{first.id}/plan.yaml", f"{second.id}/plan.yaml")
    return ["", *_unified(left, right, names)] if left != right else []


def _plan(session: SessionFolder) -> list[str]:
    try:
        return read_regular(session.plan).decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def _lines(first: SessionFolder, second: SessionFolder, compared: Comparison) -> list[str]:
    lines = _unified(_text(compared.left), _text(compared.right), (first.id, second.id))
    return ["", *lines]


def _text(items: Sequence[Item]) -> list[str]:
    lines: list[str] = []
    for part in build_parts(items, _EVERYTHING):
        mark = {"prompt": "› ", "call": "  "}.get(part.kind, "")
        lines += [f"{mark}{line}" for line in part.text.strip("\n").splitlines()]
        lines.append("")
    return lines


def _unified(left: list[str], right: list[str], names: tuple[str, str]) -> list[str]:
    lines = difflib.unified_diff(
        left, right, fromfile=names[0], tofile=names[1], lineterm="", n=_CONTEXT_LINES
    )
    return list(lines)


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return paint(line, "bold")
    style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1])
    return paint(line, style) if style else line


def _as_data(first: SessionFolder, second: SessionFolder, compared: Comparison) -> dict[str, Any]:
    def items(side: Sequence[Item]) -> list[dict[str, str]]:
        return [{"kind": part.kind, "text": part.text} for part in build_parts(side, _EVERYTHING)]

    return {
        "a": first.id,
        "b": second.id,
        "same": not compared.left and not compared.right,
        "common_items": compared.common,
        "last_common_step": compared.last_common_step or None,
        "same_plan": _plan(first) == _plan(second),
        "only_a": items(compared.left),
        "only_b": items(compared.right),
    }
