"""`amplifier policy test --as`: the guards of a plan on calls in the formats of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.redact import redactor
from amplifier_app.base.sanitize import visible
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.render.table import Column, Format, print_table
from amplifier_app.runtime.approvals import open_guards
from amplifier_app.runtime.describe import count
from amplifier_support.claude_names import HOOK_FILES

_MAX_REASON = 200

Call = tuple[str, str, Mapping[str, Any]]
"""A call as one line, its tool and its input."""


def read_programs(text: str) -> list[str]:
    """Return the programs in the value of `--as`.

    Raises:
        UsageError: One is unknown.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in HOOK_FILES:
            hint = f"Known: {', '.join(HOOK_FILES)}."
            raise UsageError(f"--as: unknown program '{visible(name)}'", hint=hint)
    return names


def show_guards(
    plan: ResolvedPlan, programs: Sequence[str], calls: Sequence[Call], output: Format
) -> bool:
    """Print the decision of each guard of a plan on calls in the format of each program.

    Returns:
        True if a guard refuses a call, or asks about it.

    Raises:
        ConfigError: The plan has no guards.
    """
    decisions = run_loop(_decide(plan, programs, calls))
    if calls and not decisions:
        raise ConfigError(
            f"the hooks of the plan '{plan.name}' have no guard in the format of another program",
            hint="See: amplifier docs hooks-shell",
        )
    if output == "json":
        print(json_text(redactor().value(decisions)))
    else:
        _print(redactor().value(decisions), programs)
    return any(row["decision"] in ("deny", "ask") for row in decisions)


async def _decide(
    plan: ResolvedPlan, programs: Sequence[str], calls: Sequence[Call]
) -> list[dict[str, Any]]:
    async with open_guards(plan) as test:
        return [
            {"call": line, "tool": tool, "input": dict(values), **decision}
            for line, tool, values in calls
            for decision in await test(programs, tool, values)
        ]


def _print(decisions: Sequence[Mapping[str, Any]], programs: Sequence[str]) -> None:
    """Print a line for each call and guard, with a column for each program."""
    lines: list[list[str]] = []
    differing = 0
    for first in range(0, len(decisions), len(programs)):
        rows = decisions[first : first + len(programs)]
        decided = [row["decision"] or "-" for row in rows]
        differing += len(set(decided)) > 1
        reason = next((row["reason"] for row in rows if row["reason"]), "")
        call, guard = rows[0]["call"], visible(rows[0]["guard"])
        lines.append([call, guard, *decided, visible(reason, _MAX_REASON)])
    columns = [
        Column("CALL", "end"),
        Column("GUARD", "middle"),
        *(program.upper() for program in programs),
        Column("REASON", "end", drop=1),
    ]
    print_table(columns, lines)
    print(f"{count(len(lines), 'decision')}, {differing:,} different")
