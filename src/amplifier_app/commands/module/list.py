"""`amplifier module list`: the modules in a plan and other available modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.render.table import Format, OutputOption, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def list_modules(
    profile: Annotated[
        str | None, typer.Option("--profile", "-P", metavar="NAME", help="Profile to use.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", "-f", metavar="FILE", help="Plan file to use.")
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """List the modules in the plan and other available modules."""
    rows = _rows(plan, profile)
    if output is Format.JSON:
        print(json.dumps(rows, indent=2))
        return
    shown = [(row["id"], row["type"], row["plan"], row["source"]) for row in rows]
    for line in table(("MODULE", "TYPE", "PLAN", "FROM"), shown):
        print(line)


def _rows(plan_file: Path | None, profile: str | None) -> list[dict[str, Any]]:
    from amplifier_app.base import installed
    from amplifier_app.commands.plan_options import chosen_plan
    from amplifier_app.plan.entries import mounted_entries
    from amplifier_core.loader import kind_of

    plan = chosen_plan(plan_file, profile)
    available = {
        one.module_id: one for one in [*installed.installed(), *installed.bundled().values()]
    }
    rows: list[dict[str, Any]] = []

    def add(module_id: str, kind: str | None, use: str, source: str | None, at: str | None) -> None:
        found = available.get(module_id) if source is None else None
        rows.append(
            {
                "id": module_id,
                "type": kind or kind_of(module_id),
                "plan": use,
                "source": source or (f"{found.distribution} {found.version}" if found else "?"),
                "entry_point": found.entry_point if found else None,
                "origin": at,
            }
        )

    for kind, path, entry in mounted_entries(plan.mount_plan()):
        use = entry.get("instance_id") or "yes"
        add(entry["module"], kind, use, entry.get("source"), str(plan.origin(path)))
    for left in plan.dropped:
        add(left.module, "provider", f"no: {left.reason}", left.source, str(left.at))
    named = {row["id"] for row in rows}
    for module_id in sorted(available.keys() - named):
        add(module_id, None, "", None, None)
    return rows
