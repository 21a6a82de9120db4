"""`amplifier session cache`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import typer

from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.commands.session.costs import amount, bill_sessions, usd
from amplifier_app.commands.session.shared import SessionArgument
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime.cost_report import MICRO, CachedRequest, cache_report, cost_report
from amplifier_app.runtime.request_log import LoggedRequest, read_requests
from amplifier_app.sessions.folder import SessionFolder

cache_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@cache_app.command()
def cache(session_id: SessionArgument, output: OutputOption = "text") -> None:
    """Show where requests of a session stop being like the one before, and what that costs.

    \b
      amplifier session cache 1a2b3c
      amplifier session cache 1a2b3c --output json

    A provider reads from its cache what a request has in common with the beginning of an earlier
    one. Shows for each request how long that is, where the first byte that differs comes from, and
    the cost of the tokens that were in the cache and had to be sent again.
    """
    folders, (lead, *agents) = bill_sessions(session_id)
    logs = [_read_log(folder) for folder in folders]
    if not any(logs):
        raise SessionError(
            f"session {folders[0].id} has no log of its requests",
            hint="The bundled orchestrators write it. Imported sessions and forks begin without one.",
        )
    rows = cache_report([*zip((lead, *agents), logs, strict=True)])
    total = cost_report(lead, agents, "agent").total
    if output == "json":
        _print_json(folders[0].id, rows, total)
    else:
        _print(rows, total)


def _read_log(folder: SessionFolder) -> list[LoggedRequest]:
    """
    Raises:
        SessionError: The log cannot be read.
    """
    try:
        return read_requests(folder.path)
    except OSError as error:
        raise SessionError(
            f"cannot read the requests of session {folder.id}: {error.strerror}"
        ) from error


def _print_json(session_id: str, rows: Sequence[CachedRequest], total: int | None) -> None:
    breaks = sum(row.is_break for row in rows)
    found = {
        "id": session_id,
        "total_usd": usd(total),
        "breaks": breaks,
        "miss_usd": usd(_total_miss(rows)),
        "requests": [_as_data(row) for row in rows],
    }
    print(json_text(found))


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
        "miss_usd": usd(_micro(row.miss_cost)),
        "difference": None
        if difference is None
        else {**difference._asdict(), "origin": difference.origin},
    }


def _micro(dollars: Fraction | None) -> int | None:
    return None if dollars is None else round(dollars * MICRO)


def _total_miss(rows: Sequence[CachedRequest]) -> int | None:
    """Millionths of a dollar; None if no miss has a known cost."""
    costs = [row.miss_cost for row in rows if row.miss_cost is not None]
    return _micro(sum(costs, Fraction(0))) if costs else None


def _print(rows: Sequence[CachedRequest], total: int | None) -> None:
    columns = [
        Column("STEP", right=True),
        Column("SESSION", fit="middle", drop=3),
        Column("MODEL", fit="end", drop=2),
        Column("BYTES", right=True, drop=1),
        Column("SAME", right=True),
        Column("INPUT", right=True),
        Column("CACHED", right=True),
        Column("COST", right=True),
        Column("MISS", right=True),
    ]
    lines = [
        [
            str(row.request.step),
            row.session,
            row.request.model or row.request.provider,
            f"{row.request.size:,}",
            _count(row.request.same),
            _count(row.input),
            _count(row.read),
            "" if row.cost is None else f"${row.cost:.6f}",
            _describe_miss(row),
        ]
        for row in rows
    ]
    lines.append(["total", *[""] * 6, amount(total), amount(_total_miss(rows))])
    # Names that are the same everywhere, and values that no provider has reported, say nothing.
    values = [{line[n] for line in lines[:-1]} for n in range(len(columns))]
    shown = [
        n
        for n, found in enumerate(values)
        if len(found) > (1 if n in (1, 2) else 0) and found != {""}
    ]
    print_table([columns[n] for n in shown], [[line[n] for n in shown] for line in lines])
    for row in rows:
        for line in _describe(row):
            print(line)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _describe_miss(row: CachedRequest) -> str:
    if not row.missed:
        return ""
    return amount(_micro(row.miss_cost)) or f"{row.missed:,} tokens"


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
