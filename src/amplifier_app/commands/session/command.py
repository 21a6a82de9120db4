"""`amplifier session`: list, search, show, diff, rename, delete, cost and replay sessions."""

from __future__ import annotations

import difflib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar, cast

import typer

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_pieces, json_text
from amplifier_app.base.pager import show_paged
from amplifier_app.base.paths import short_path, working_dir
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import for_pipe, for_terminal, one_line
from amplifier_app.base.stdio import is_dumb, read_line, stdin_is_tty, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.group import command_group
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.render.ansi import paint
from amplifier_app.render.conversation import play
from amplifier_app.render.plain import PlainRenderer
from amplifier_app.render.screen import AnsiScreen
from amplifier_app.render.table import Column, Format, OutputOption, print_table
from amplifier_app.render.terminal import TerminalRenderer
from amplifier_app.runtime import describe
from amplifier_app.runtime.cost_report import MICRO, Billed, Report, cost_report, prices_of
from amplifier_app.runtime.event_log import read_events
from amplifier_app.runtime.export.markdown import as_markdown
from amplifier_app.runtime.export.parts import (
    Heading,
    call_text,
    heading_of,
    last_prompts,
    parts_of,
)
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.visibility import Shown, Visibility, mark_of, shown_blocks
from amplifier_app.sessions.conversation import Comparison, Conversation, Item, Step, compare
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.index import Index, Listed, Match, Page, ask_index
from amplifier_app.sessions.removal import (
    remove_leftovers,
    remove_sessions,
    size_of,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary, short_id
from amplifier_app.sessions.tool_calls import CallNumbers
from amplifier_support.files import read_regular

app = command_group(
    "session",
    {
        "export": "Export a session as Markdown, JSON, HTML, ATIF or a bundle.",
        "import": "Import a bundle.",
        "resume": "Choose a saved session and continue it.",
        "fork": "Start a new session from a step of another one.",
        "prune": "Delete old sessions.",
        "verify": "Check sessions for damage, and repair them.",
    },
    where="amplifier_app.commands.session.managing:{}_app",
)


_Answer = TypeVar("_Answer")
_PATIENCE_SECONDS = 600.0

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Session id, the start of one, or a short id.", show_default=False
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def from_index(question: Callable[[Index], _Answer]) -> _Answer:
    """Ask the index of the saved sessions; what there is to say about it goes to stderr."""
    answer, remark = ask_index(SessionStore().root, question)
    if remark:
        to_stderr(f"amplifier: {remark}")
    return answer


def confirm(question: str, yes: bool) -> bool:
    """Ask a yes-or-no question on the terminal; the default is no.

    Raises:
        UsageError: There is no terminal to ask on.
    """
    if yes:
        return True
    if not stdin_is_tty() or not os.isatty(2):
        raise UsageError("cannot ask for confirmation without a terminal", hint="Pass --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return (read_line(_PATIENCE_SECONDS) or "").strip().lower() in ("y", "yes")


_ON_A_TERMINAL = 20


@app.command("list", short_help="List saved sessions.")
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


@app.command("search", short_help="Search the text of all sessions.")
def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="Words to find; all of them must occur."),
    ],
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, metavar="N", help="List at most N sessions; 0 lists all."
        ),
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
    found = from_index(lambda index: index.search(text, limit))
    if output == "json":
        print(json_text([_as_json(match) for match in found.matches]))
    elif os.isatty(1):
        for match in found.matches:
            _print(match)
    else:
        for match in found.matches:
            print(f"{match.session.id}: {_snippet(match)}")
    more = found.total - len(found.matches)
    if not found.total:
        to_stderr(f"no session contains {one_line(text)!r}")
        raise typer.Exit(1)
    if more and output == "text":
        to_stderr(f"{more:,} more: -n 0")


def _as_json(match: Match) -> dict[str, object]:
    return {**match.session._asdict(), "snippet": "".join(text for text, _ in match.snippet)}


def _snippet(match: Match) -> str:
    return one_line("".join(text for text, _ in match.snippet), 400)


def _print(match: Match) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    session = match.session
    head = Text.assemble(
        (short_id(session.id), "bold"),
        "  ",
        one_line(session.about, 80),
        (f"  {describe.age(session.updated)}", "dim"),
    )
    console.print(head, no_wrap=True, overflow="ellipsis")
    line = Text()
    for text, is_match in match.snippet:
        # A line break in the text is shown as a space.
        style = "bold yellow" if is_match else "dim"
        line.append(" ".join(one_line(f"|{text}|", 400)[1:-1].split("\n")), style)
    console.print(Padding(line, (0, 0, 0, 4)))


@app.command("show", short_help="Show a session's conversation, or one tool call.")
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
    found = SessionStore().find(session_id)
    conversation = found.conversation()
    visibility = Visibility(up_to or _default_level())
    width = terminal_width(1)
    if call:
        _show_call(found, conversation, call, output, use_pager=not no_pager)
        return
    spawned = from_index(lambda index: index.sub_sessions_of(found.id))
    if output == "json":
        _print_json(found, spawned, visibility)
        return
    parts = parts_of(last_prompts(conversation, last or 0), visibility)
    heading = heading_of(found.id, found.metadata, conversation, age=width is not None)
    lines = [f"sub-session {one.id} ({one_line(one.about, 60)})" for one in spawned]
    heading = Heading(heading.title, heading.facts, lines)
    if width is None:
        show_paged(as_markdown(heading, parts))
        return
    from amplifier_app.render.conversation import as_ansi  # Loads Rich.

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
    ids = [one.id for one in spawned if one.parent == found.id]
    shown = {"metadata": found.metadata, "sub_sessions": ids, "messages": messages}
    show_paged(itertools.chain(json_pieces(shown), ["\n"]), use_pager=False)


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
    return cast("Shown", read_settings().display.get("show") or "user")


_CONTEXT_LINES = 3


@app.command("diff", short_help="Show where two sessions diverge.")
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="Session id.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another one, such as a fork.")],
    no_pager: Annotated[bool, typer.Option("--no-pager", help="Do not use a pager.")] = False,
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
    found = _unified(_text(compared.left), _text(compared.right), (first.id, second.id))
    return ["", *found]


def _text(items: Sequence[Item]) -> list[str]:
    lines: list[str] = []
    for part in parts_of(items, Visibility()):
        mark = {"prompt": "› ", "call": "  "}.get(part.kind, "")
        lines += [f"{mark}{line}" for line in part.text.strip("\n").splitlines()]
        lines.append("")
    return lines


def _unified(left: list[str], right: list[str], names: tuple[str, str]) -> list[str]:
    found = difflib.unified_diff(
        left, right, fromfile=names[0], tofile=names[1], lineterm="", n=_CONTEXT_LINES
    )
    return list(found)


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return paint(line, "bold")
    style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1])
    return paint(line, style) if style else line


def _as_data(first: SessionFolder, second: SessionFolder, compared: Comparison) -> dict[str, Any]:
    def items(found: Sequence[Item]) -> list[dict[str, str]]:
        return [{"kind": one.kind, "text": one.text} for one in parts_of(found, Visibility())]

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


@app.command("rename", short_help="Change a session's title.")
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


@app.command("delete", short_help="Delete sessions and their sub-sessions.")
def delete(
    session_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="Session ids or prefixes."),
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
    wanted: list[str] = []
    for session_id in session_ids:
        found = store.find(session_id).id
        wanted += [one for one in with_sub_sessions(found, summaries) if one not in wanted]
    for session_id in reversed(wanted):
        size = describe.size(size_of(store.root / session_id))
        title = one_line(by_id[session_id].about, 60)
        to_stderr(f"  {session_id}  {title}  ({size})".replace("    ", "  "))
    if not confirm(f"Delete {describe.count(len(wanted), 'session')}?", yes):
        to_stderr("Nothing was deleted.")
        return
    remove_sessions(store.root, wanted)
    remove_leftovers(store.root)
    from_index(lambda index: index.forget_removed())
    print(f"Deleted {describe.count(len(wanted), 'session')}.")


@app.command("cost", short_help="Show what the parts of a session have cost.")
def cost(
    session_id: SessionArgument,
    by: Annotated[
        Literal["agent", "tool", "step", "message"],
        typer.Option("--by", help="Divide the cost among these."),
    ] = "tool",
    what_if: Annotated[
        str | None,
        typer.Option(
            "--what-if",
            metavar="model=NAME",
            help="Charge the same tokens at the list prices of another model.",
        ),
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Show what the parts of a session have cost, its sub-agents included.

    \b
      amplifier session cost 1a2b3c --by tool
      amplifier session cost 1a2b3c --by message --what-if model=claude-haiku-5-5

    Every model call is billed for the whole context. Its cost is divided among what put the
    context there, so a long tool result costs again in each later step, less the cache. Lengths
    are estimated; the parts add up to the session's cost exactly.
    """
    prices = None
    if what_if is not None:
        key, _, name = what_if.partition("=")
        if key != "model" or not name:
            raise UsageError(f"--what-if expects model=NAME, got {what_if!r}")
        prices = prices_of(name)
    store = SessionStore()
    found = store.find(session_id)
    below = from_index(lambda index: index.sub_sessions_of(found.id))
    lead = _bill(found, "main")
    agents = [
        _bill(SessionFolder(store.root / one.id), f"{one_line(one.agent or '', 40)} {one.id}")
        for one in below
    ]
    report = cost_report(lead, agents, by, prices)
    if output == "json":
        _print_json_cost(found.id, by, what_if, report)
        return
    _print_cost(by, report)
    if report.total is None:
        to_stderr("The cost is unknown: a model call has no price. Try --what-if model=NAME")


def _bill(folder: SessionFolder, name: str) -> Billed:
    return Billed(name, folder.conversation(), folder.metadata)


def _print_json_cost(session_id: str, by: str, what_if: str | None, report: Report) -> None:
    found = {
        "id": session_id,
        "by": by,
        "what_if": what_if,
        "total_usd": _usd(report.total),
        "tokens": report.tokens,
        "parts": [
            {"name": one.name, "cost_usd": _usd(one.micro_dollars), "tokens": one.tokens}
            for one in report.shares
        ],
    }
    print(json_text(found))


def _usd(micro_dollars: int | None) -> str | None:
    return None if micro_dollars is None else f"{Decimal(micro_dollars) / MICRO:.6f}"


def _print_cost(by: str, report: Report) -> None:
    columns = [
        Column("COST", right=True),
        Column("SHARE", right=True, drop=2),
        Column("TOKENS", right=True, drop=1),
        Column(by.upper(), fit="end"),
    ]
    rows = [
        [_amount(one.micro_dollars), _share(one.micro_dollars, report), f"{one.tokens:,}", one.name]
        for one in report.shares
    ]
    total = [_amount(report.total), "100 %" if report.total else "", f"{report.tokens:,}", "total"]
    print_table(columns, [*rows, total] if rows else [])


def _amount(micro_dollars: int | None) -> str:
    return "" if micro_dollars is None else f"${_usd(micro_dollars)}"


def _share(micro_dollars: int | None, report: Report) -> str:
    if micro_dollars is None or not report.total:
        return ""
    return f"{100 * micro_dollars / report.total:.1f} %"


@app.command("replay", short_help="Show a session as it ran.")
def replay(
    context: typer.Context,
    session_id: SessionArgument,
    speed: Annotated[
        float,
        typer.Option("--speed", metavar="N", help="N times as fast as it was; 0 does not wait."),
    ] = 1.0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Plain output: no colours, no redrawing.")
    ] = False,
) -> None:
    """Show a session as it ran, from the log that hooks-logging wrote.

    \b
      amplifier session replay 1a2b3c --speed 4

    No model is asked and no tool runs. Pauses of more than 3 s are cut short.
    """
    if not 0 <= speed < float("inf"):
        raise UsageError(f"--speed must not be negative (got {speed:g})")
    found = SessionStore().find(session_id)
    events = list(read_events(found.path))
    if not any(event.get("event") == "prompt:submit" for event in events):
        raise SessionError(
            f"session {found.id} has no log of what happened",
            hint=f"Its plan has no hooks-logging. The conversation: amplifier session show {found.id}",
        )
    output = context.obj.stdout
    renderer: Renderer
    if plain or not os.isatty(1) or is_dumb():
        renderer = PlainRenderer(output)
    else:
        renderer = TerminalRenderer(AnsiScreen(output))
        hint = f"amplifier session show {found.id} --call N shows a whole result"
        renderer.full_result_hint = hint
    numbers = CallNumbers(found.records())
    renderer.call_number = numbers.of
    try:
        run_loop(play(events, renderer, speed))
    finally:
        renderer.close()
