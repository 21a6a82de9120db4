"""`amplifier session cost`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Literal

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.price_files import describe_prices
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime.cost_report import MICRO, Billed, Report, cost_report, find_prices
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore

cost_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@cost_app.command()
def cost(
    session_id: SessionArgument,
    by: Annotated[
        Literal["agent", "tool", "step", "message", "model"],
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
      amplifier session cost 1a2b3c --by model
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
        prices = find_prices(name)
    folders, (lead, *agents) = bill_sessions(session_id)
    report = cost_report(lead, agents, by, prices)
    files = _price_files((lead, *agents)) if what_if is None else []
    if output == "json":
        _print_json(folders[0].id, by, what_if, report, files)
        return
    _print(by, report)
    for file in files:
        to_stderr(f"amplifier: {describe_prices(file)}")
    if report.total is None:
        to_stderr("The cost is unknown: a model call has no price. Try --what-if model=NAME")


def bill_sessions(session_id: str) -> tuple[list[SessionFolder], list[Billed]]:
    """Return a session and its sub-sessions, each with what it was billed for.

    Raises:
        SessionError: A session does not exist or is damaged.
    """
    store = SessionStore()
    session = store.find(session_id)
    below = from_index(lambda index: index.list_sub_sessions(session.id))
    names = ["main", *(f"{one_line(one.agent or '', 40)} {one.id}" for one in below)]
    folders = [session, *(SessionFolder(store.root / one.id) for one in below)]
    return folders, [_bill(folder, name) for folder, name in zip(folders, names, strict=True)]


def _bill(folder: SessionFolder, name: str) -> Billed:
    return Billed(name, folder.conversation(), folder.metadata)


def _price_files(sessions: Iterable[Billed]) -> list[dict[str, str]]:
    """The files that the cost was computed from."""
    files: list[dict[str, str]] = []
    for billed in sessions:
        files += [file for file in billed.metadata.get("prices") or () if file not in files]
    return files


def _print_json(
    session_id: str,
    by: str,
    what_if: str | None,
    report: Report,
    files: Sequence[Mapping[str, str]],
) -> None:
    found = {
        "id": session_id,
        "by": by,
        "what_if": what_if,
        "total_usd": usd(report.total),
        "tokens": report.tokens,
        "prices": files,
        "parts": [
            {"name": share.name, "cost_usd": usd(share.micro_dollars), "tokens": share.tokens}
            for share in report.shares
        ],
    }
    print(json_text(found))


def usd(micro_dollars: int | None) -> str | None:
    """Millionths of a dollar as dollars."""
    return None if micro_dollars is None else f"{Decimal(micro_dollars) / MICRO:.6f}"


def _print(by: str, report: Report) -> None:
    columns = [
        Column("COST", right=True),
        Column("SHARE", right=True, drop=2),
        Column("TOKENS", right=True, drop=1),
        Column(by.upper(), fit="end"),
    ]
    rows = [
        [
            amount(share.micro_dollars),
            _share(share.micro_dollars, report),
            f"{share.tokens:,}",
            share.name,
        ]
        for share in report.shares
    ]
    total = [amount(report.total), "100 %" if report.total else "", f"{report.tokens:,}", "total"]
    print_table(columns, [*rows, total] if rows else [])


def amount(micro_dollars: int | None) -> str:
    """Millionths of a dollar for people; empty if unknown."""
    return "" if micro_dollars is None else f"${usd(micro_dollars)}"


def _share(micro_dollars: int | None, report: Report) -> str:
    if micro_dollars is None or not report.total:
        return ""
    return f"{100 * micro_dollars / report.total:.1f} %"
