"""`amplifier module list`: the modules in a plan and other available modules."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import typer

from amplifier_app.base import installed
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.tree.entries import mounted_entries
from amplifier_app.render.ansi import wrapped
from amplifier_app.render.table import (
    Column,
    OutputOption,
    print_table,
)
from amplifier_core.loader import kind_of

_COLUMNS = (
    Column("MODULE"),
    Column("TYPE", drop=2),
    Column("PLAN"),
    Column("DESCRIPTION", "wrap", drop=1, least=45),
    Column("FROM", "middle", drop=3, least=16),
)
_DOCSTRING = re.compile(r"\A(?:\s|#.*\n)*[rR]?(?:\"\"\"|\'\'\')\s*(.+?)\s*(?:\"\"\"|\'\'\'|\n|\Z)")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_plan_options("profile", "plan")
def list_modules(
    *,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """List the modules in the plan and other available modules."""
    rows = _rows(chosen_plan(request))
    if output == "json":
        print(json_text(rows))
        return
    print_table(_COLUMNS, [_cells(row) for row in rows])
    skipped = [f"{row['id']} skipped: {row['left_out']}" for row in rows if row["left_out"]]
    width = terminal_width(1)
    for index, reason in enumerate(map(one_line, skipped)):
        lines = [reason] if width is None else wrapped(reason, width, "  ")
        print("\n".join(lines if index else ["", *lines]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    use = "skipped" if row["left_out"] else row["plan"]
    return row["id"], row["type"], use, row["summary"] or "", row["source"]


def _rows(plan: ResolvedPlan) -> list[dict[str, Any]]:
    available = {
        one.module_id: one
        for one in [*installed.modules_on_path(), *installed.bundled_modules().values()]
    }
    folders = installed.modules_in_folders()
    rows: list[dict[str, Any]] = []

    def add(
        module_id: str,
        kind: str | None,
        use: str,
        source: str | None,
        at: str | None,
        left_out: str | None = None,
    ) -> None:
        found = available.get(module_id) if source is None else None
        if source is None and found is None and (folder := folders.get(module_id)):
            source = str(folder)
        rows.append(
            {
                "id": module_id,
                "type": kind or kind_of(module_id),
                "plan": use,
                "summary": _summary(module_id, found.entry_point) if found else None,
                "left_out": left_out,
                "source": source or (f"{found.distribution} {found.version}" if found else "?"),
                "entry_point": found.entry_point if found else None,
                "origin": at,
            }
        )

    for kind, path, entry in mounted_entries(plan.mount_plan()):
        use = entry.get("instance_id") or "yes"
        add(entry["module"], kind, use, entry.get("source"), str(plan.origin(path)))
    for left in plan.dropped:
        add(left.module, "provider", f"no: {left.reason}", left.source, str(left.at), left.reason)
    named = {row["id"] for row in rows}
    for module_id in sorted(available.keys() - named):
        add(module_id, None, "", None, None)
    for module_id in sorted(folders.keys() - named - available.keys()):
        add(module_id, None, "", None, None)
    return rows


def _summary(module_id: str, entry_point: str) -> str | None:
    """Return the first line of a module's docstring, read from its file: nothing is imported."""
    package, *inner = entry_point.partition(":")[0].split(".")
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        base = Path(folder, *inner)
        for file in (base / "__init__.py", base.with_suffix(".py")):
            try:
                with file.open(encoding="utf-8") as text:
                    match = _DOCSTRING.match(text.read(4096))
            except (OSError, ValueError):  # not this file, or not UTF-8
                continue
            return match[1].removeprefix(f"{module_id}: ").removesuffix(".") if match else None
    return None
