"""`amplifier session`: list and show saved sessions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, cast

import typer

from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.render.table import Format, OutputOption, table
from amplifier_app.runtime.visibility import Shown, Visibility, mark_of, shown_blocks
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary

app = typer.Typer(
    name="session",
    help="List and show saved sessions.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


HEAD = ("SESSION", "UPDATED", "PROMPTS", "PROJECT", "TITLE")


@app.command("list")
def list_sessions(
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            metavar="N",
            help="List at most N sessions, not counting sub-sessions; 0 lists all.",
        ),
    ] = 0,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="DIR", help="List only sessions started in DIR."),
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """List saved sessions, most recent first.

    Sub-sessions are listed below their parents.
    """
    found = [
        summary
        for summary in SessionStore().summaries()
        if project is None or summary.project == project
    ]
    found = _with_sub_sessions(found, limit)
    if output is Format.JSON:
        print(json.dumps([summary._asdict() for summary in found], indent=2))
        return
    if not found:
        typer.echo("No saved sessions.", err=True)
    for line in table(HEAD, [_row(summary) for summary in found]):
        print(line)


@app.command()
def show(
    session_id: Annotated[
        str, typer.Argument(metavar="ID", help="Session id, or the start of one.")
    ],
    up_to: Annotated[
        Literal["user", "developer", "internal"] | None,
        typer.Option(
            "--show",
            help="Show message blocks up to this visibility; 'internal' shows all. [default: user]",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show a session's metadata and conversation."""
    metadata, messages = SessionStore().read(session_id)
    visibility = Visibility(up_to or _default_level())
    messages = [_visible(message, visibility) for message in messages]
    if output is Format.JSON:
        spawned = [child.id for child in SessionStore().spawned_by(str(metadata["id"]))]
        shown = {"metadata": metadata, "sub_sessions": spawned, "messages": messages}
        print(json.dumps(shown, indent=2))
        return
    for key, value in metadata.items():
        print(f"{key}: {one_line(value if isinstance(value, str) else json.dumps(value))}")
    for child in SessionStore().spawned_by(str(metadata["id"])):
        print(f"sub-session: {child.id} ({one_line(str(child.agent), 60)})")
    for message in messages:
        print()
        print(f"[{one_line(str(message.get('role')))}]")
        for line in message_lines(message):
            print(for_terminal(line))


def _visible(message: dict[str, Any], visibility: Visibility) -> dict[str, Any]:
    """A stored message without hidden blocks."""
    shown = dict(message)
    if isinstance(message.get("content"), list):
        shown["content"] = shown_blocks(message["content"], visibility)
    thought = message.get("thinking_block")
    if thought is not None and not visibility.shows("thinking", mark_of(thought)):
        del shown["thinking_block"]
    return shown


def _default_level() -> Shown:
    """The visibility level set in the user's settings."""
    from amplifier_app.plan.scopes import read_settings

    return cast("Shown", read_settings().display.get("show") or "user")


def _with_sub_sessions(summaries: list[SessionSummary], limit: int) -> list[SessionSummary]:
    """At most `limit` sessions in the same order, each followed by those it spawned."""
    ids = {summary.id for summary in summaries}
    spawned: dict[str | None, list[SessionSummary]] = {}
    for summary in summaries:
        above = summary.parent if summary.agent and summary.parent in ids else None
        spawned.setdefault(above, []).append(summary)
    ordered: list[SessionSummary] = []
    waiting = spawned.get(None, [])[: limit or None][::-1]
    while waiting:
        summary = waiting.pop()
        ordered.append(summary)
        waiting += spawned.get(summary.id, [])[::-1]
    return ordered


def _row(summary: SessionSummary) -> tuple[str, ...]:
    about = summary.title or ""
    return (
        f"└ {summary.id}" if summary.agent else summary.id,
        summary.updated[:19].replace("T", " "),
        "" if summary.prompts is None else str(summary.prompts),
        one_line(summary.project or "", 40),
        one_line(f"{summary.agent}: {about}" if summary.agent else about, 60),
    )


def message_lines(message: dict[str, Any]) -> list[str]:
    """A stored message as lines of plain text, including tool calls and results."""
    content = message.get("content")
    lines: list[str] = []
    if isinstance(content, str):
        lines += content.splitlines()
    seen: set[Any] = set()
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict):
            seen.add(block.get("id"))
            lines += _block_lines(block)
    for call in message.get("tool_calls") or ():
        if call.get("id") not in seen:
            body = call.get("function") or call
            name = body.get("name") or body.get("tool") or ""
            given = body.get("arguments", "")
            arguments = given if isinstance(given, str) else json.dumps(given)
            lines.append(f"→ {name} {arguments}")
    return lines


def _block_lines(block: dict[str, Any]) -> list[str]:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", "")).splitlines()
    if kind == "thinking":
        return [f"  (thinking) {line}" for line in str(block.get("thinking", "")).splitlines()]
    if kind == "tool_call":
        return [f"→ {block.get('name', '')} {json.dumps(block.get('input'))}"]
    if kind == "tool_result":
        output = block.get("output")
        return (output if isinstance(output, str) else json.dumps(output)).splitlines()
    return [f"({kind})"]
