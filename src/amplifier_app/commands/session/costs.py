"""`amplifier session cost|cache`: what a session has cost, and what its requests missed in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.price_files import describe_prices
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.session.shared import SessionArgument, from_index
from amplifier_app.commands.typer_options import option
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime.cost_report import (
    MICRO,
    Billed,
    CachedRequest,
    Report,
    cache_report,
    cost_report,
    find_prices,
)
from amplifier_app.runtime.request_log import LoggedRequest, read_requests
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_support.files import system_errors_as


def cost(
    session_id: SessionArgument,
    by: Annotated[
        Literal["agent", "tool", "step", "message", "model"],
        option("--by", "Divide the cost among these."),
    ] = "tool",
    what_if: Annotated[
        str | None,
        option(
            "--what-if model=NAME", "Charge the same tokens at the list prices of another model."
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
    folders, (lead, *agents) = _bill_sessions(session_id)
    report = cost_report(lead, agents, by, prices)
    files = _price_files((lead, *agents)) if what_if is None else []
    if output == "json":
        data = {
            "id": folders[0].id,
            "by": by,
            "what_if": what_if,
            "total_usd": _usd(report.total),
            "tokens": report.tokens,
            "prices": files,
            "parts": [
                {"name": share.name, "cost_usd": _usd(share.micro_dollars), "tokens": share.tokens}
                for share in report.shares
            ],
        }
        print(json_text(data))
        return
    _print_shares(by, report)
    if not report.shares:
        to_stderr(f"session {folders[0].id} has made no model calls")
    for file in files:
        to_stderr(f"amplifier: {describe_prices(file)}")
    if report.total is None:
        to_stderr("The cost is unknown: a model call has no price. Try --what-if model=NAME")


def _bill_sessions(session_id: str) -> tuple[list[SessionFolder], list[Billed]]:
    """Return a session and its sub-sessions, each with what it was billed for.

    Raises:
        SessionError: A session does not exist or is damaged.
    """
    store = SessionStore()
    session = store.find(session_id)
    below = from_index(lambda index: index.list_sub_sessions(session.id))
    names = ["main", *(f"{one_line(summary.agent or '', 40)} {summary.id}" for summary in below)]
    folders = [session, *(SessionFolder(store.root / summary.id) for summary in below)]
    return folders, [
        Billed(name, folder.conversation(), folder.metadata)
        for folder, name in zip(folders, names, strict=True)
    ]


def _price_files(sessions: Iterable[Billed]) -> list[dict[str, str]]:
    """The files that the cost was computed from."""
    files: list[dict[str, str]] = []
    for billed in sessions:
        files += [file for file in billed.metadata.get("prices") or () if file not in files]
    return files


def _usd(micro_dollars: int | None) -> str | None:
    """Millionths of a dollar as dollars."""
    return None if micro_dollars is None else f"{Decimal(micro_dollars) / MICRO:.6f}"


def _print_shares(by: str, report: Report) -> None:
    columns = [
        Column("COST", right=True),
        Column("SHARE", right=True, drop=2),
        Column("TOKENS", right=True, drop=1),
        Column(by.upper(), fit="end"),
    ]
    rows = [
        [
            _amount(share.micro_dollars),
            _share(share.micro_dollars, report),
            f"{share.tokens:,}",
            share.name,
        ]
        for share in report.shares
    ]
    total = [_amount(report.total), "100 %" if report.total else "", f"{report.tokens:,}", "total"]
    print_table(columns, [*rows, total] if rows else [])


def _amount(micro_dollars: int | None) -> str:
    """Millionths of a dollar for people; empty if unknown."""
    return "" if micro_dollars is None else f"${_usd(micro_dollars)}"


def _share(micro_dollars: int | None, report: Report) -> str:
    if micro_dollars is None or not report.total:
        return ""
    return f"{100 * micro_dollars / report.total:.1f} %"


def cache(session_id: SessionArgument, output: OutputOption = "text") -> None:
    """Show where requests of a session stop being like the one before, and what that costs.

    \b
      amplifier session cache 1a2b3c
      amplifier session cache 1a2b3c --output json

    A provider reads from its cache what a request has in common with the beginning of an earlier
    one. Shows for each request how long that is, where the first byte that differs comes from, and
    the cost of the tokens that were in the cache and had to be sent again.
    """
    folders, (lead, *agents) = _bill_sessions(session_id)
    logs = [_read_log(folder) for folder in folders]
    if not any(logs):
        raise SessionError(
            f"session {folders[0].id} has no log of its requests",
            hint="The bundled orchestrators write it. Imported sessions and forks begin without one.",
        )
    rows = cache_report([*zip((lead, *agents), logs, strict=True)])
    total = cost_report(lead, agents, "agent").total
    if output == "json":
        data = {
            "id": folders[0].id,
            "total_usd": _usd(total),
            "breaks": sum(row.is_break for row in rows),
            "miss_usd": _usd(_total_miss(rows)),
            "requests": [_as_data(row) for row in rows],
        }
        print(json_text(data))
    else:
        _print_requests(rows, total)


def _read_log(folder: SessionFolder) -> list[LoggedRequest]:
    """
    Raises:
        SessionError: The log cannot be read.
    """
    with system_errors_as(SessionError, f"cannot read the requests of session {folder.id}"):
        return read_requests(folder.path)


def _as_data(row: CachedRequest) -> dict[str, Any]:
    request = row.request
    difference = request.difference
    return {
        "session": row.session,
        "request": request.number,
        "step": request.step,
        "time": request.time,
        "provider": request.provider,
        "model": request.model,
        "bytes": request.size,
        "same_bytes": request.same,
        "input_tokens": row.input,
        "same_tokens": row.same,
        "cached_tokens": row.read,
        "cost_usd": None if row.cost is None else f"{row.cost:f}",
        "missed_tokens": row.missed,
        "miss_usd": _usd(_micro(row.miss_cost)),
        "difference": None
        if difference is None
        else {**difference._asdict(), "origin": difference.origin},
    }


def _micro(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * MICRO)


def _total_miss(rows: Sequence[CachedRequest]) -> int | None:
    """Millionths of a dollar; None if no miss has a known cost."""
    costs = [row.miss_cost for row in rows if row.miss_cost is not None]
    return _micro(sum(costs)) if costs else None


def _print_requests(rows: Sequence[CachedRequest], total: int | None) -> None:
    columns = [
        Column("STEP", right=True),
        Column("SESSION", fit="middle", drop=3, optional=True),
        Column("MODEL", fit="end", drop=2, optional=True),
        Column("BYTES", right=True, drop=1),
        *(Column(head, right=True, optional=True) for head in ("SAME", "INPUT", "CACHED")),
        *(Column(head, right=True, optional=True) for head in ("COST", "MISS")),
    ]
    # Names that are the same everywhere say nothing.
    models = [row.request.model or row.request.provider for row in rows]
    has_sessions, has_models = len({row.session for row in rows}) > 1, len({*models}) > 1
    lines = [
        [
            str(row.request.step),
            row.session if has_sessions else "",
            model if has_models else "",
            f"{row.request.size:,}",
            _count(row.request.same),
            _count(row.input),
            _count(row.read),
            "" if row.cost is None else f"${row.cost:.6f}",
            _describe_miss(row),
        ]
        for row, model in zip(rows, models, strict=True)
    ]
    lines.append(["total", *[""] * 6, _amount(total), _amount(_total_miss(rows))])
    print_table(columns, lines)
    for row in rows:
        for line in _describe(row):
            print(line)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _describe_miss(row: CachedRequest) -> str:
    if not row.missed:
        return ""
    return _amount(_micro(row.miss_cost)) or f"{row.missed:,} tokens"


def _describe(row: CachedRequest) -> Iterator[str]:
    """Yield the break of a request, or why nothing was read from the cache although there is none."""
    difference, step = row.request.difference, f"step {row.request.step}"
    if row.session != "main":
        step = f"{row.session}, {step}"
    if row.is_break and difference is not None:
        yield f"\n{step}, {one_line(str(difference), 1000)}"
        if difference.is_exact and difference.kind != "model":
            yield f"  - {one_line(difference.before, 100)}"
            yield f"  + {one_line(difference.after, 100)}"
    elif row.missed:
        yield f"\n{step}: unchanged, but not in the cache any more"
