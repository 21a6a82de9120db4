"""`amplifier module list|show`: which modules there are, and where one comes from, why, and its config."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import to_outcome
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import terminal_width
from amplifier_app.commands.module.description import ModuleFacts, collect_facts
from amplifier_app.commands.plan_options import chosen_plan, skipped_lines, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.modules import SourcedModule, sourced_modules
from amplifier_app.plan.schema.module_schemas import current_keys
from amplifier_app.plan.tree.entries import mounted_entries
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.resolved import Considered, ResolvedSource
from amplifier_app.sources.resolver import resolver_for
from amplifier_core.module_sources import ModuleNotFoundError, find_kind

_COLUMNS = (
    Column("MODULE"),
    Column("TYPE", drop=2),
    Column("PLAN"),
    Column("DESCRIPTION", "wrap", drop=1, least=45),
    Column("FROM", "middle", drop=3, least=16),
)
_DOCSTRING = re.compile(r"\A(?:\s|#.*\n)*[rR]?(?:\"\"\"|\'\'\')\s*(.+?)\s*(?:\"\"\"|\'\'\'|\n|\Z)")


@takes_plan_options("profile", "plan")
def list_modules(*, request: Request, output: OutputOption = "text") -> None:
    """List the modules in the plan and other available modules."""
    rows = _rows(chosen_plan(request))
    if output == "json":
        print(json_text(rows))
        return
    cells = [
        (
            row["id"],
            row["type"],
            "skipped" if row["left_out"] else row["plan"],
            row["summary"] or "",
            row["source"],
        )
        for row in rows
    ]
    print_table(_COLUMNS, cells)
    for line in skipped_lines(rows, "id", terminal_width(1)):
        print(line)


def _rows(plan: ResolvedPlan) -> list[dict[str, Any]]:
    available = {
        module.module_id: module
        for module in [*installed.modules_on_path(), *installed.bundled_modules().values()]
    }
    folders = installed.modules_in_folders()
    rows: list[dict[str, Any]] = []

    def add(
        module_id: str,
        kind: str | None = None,
        use: str = "",
        source: str | None = None,
        at: str | None = None,
        left_out: str | None = None,
    ) -> None:
        match = available.get(module_id) if source is None else None
        if source is None and match is None and (folder := folders.get(module_id)):
            source = str(folder)
        rows.append(
            {
                "id": module_id,
                "type": kind or find_kind(module_id),
                "plan": use,
                "summary": _summary(module_id, match.entry_point) if match else None,
                "left_out": left_out,
                "source": source or (f"{match.distribution} {match.version}" if match else "?"),
                "entry_point": match.entry_point if match else None,
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
        add(module_id)
    for module_id in sorted(folders.keys() - named - available.keys()):
        add(module_id)
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


@takes_plan_options("profile", "plan", "sets")
def show(
    module: Annotated[str, argument("ID", "Id of the module, for example tool-bash.")],
    *,
    request: Request,
    offline: Annotated[bool, option("--offline", "Do not download anything.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show where a module comes from, which places were searched, and its config.

    \b
      amplifier module show tool-bash
      amplifier module show ./my-tool

    Downloads the module if it is not on this machine. Exits with 3 if it is unavailable.
    """
    chosen = chosen_plan(request, keep_unset=True)
    entries = [entry for entry in sourced_modules(chosen) if entry.module == module]
    source = _one_source(chosen, entries)
    resolver = resolver_for(chosen, offline=True if offline else None)
    considered = resolver.considered(module, source)
    resolved = facts = failure = None
    try:
        resolved = resolver.resolve(module, source)
        facts = collect_facts(module, resolved)
    except (SourceError, ModuleNotFoundError) as error:
        failure = error
    report = _facts(module, chosen, entries, considered, resolved, facts, failure)
    if output == "json":
        # The object on stdout contains the error.
        print(json_text(report))
        raise typer.Exit(to_outcome(failure).exit_code if failure is not None else 0)
    for line in _lines(report):
        print(for_terminal(line))
    if failure is not None:
        raise failure


def _one_source(plan: ResolvedPlan, entries: list[SourcedModule]) -> str | None:
    sources = {entry.source: entry for entry in entries}
    if len(sources) > 1:
        places = "; ".join(
            f"{source.written or 'no source'} ({source.at})" for source in sources.values()
        )
        raise ConfigError(
            f"{entries[0].module} has several sources in the plan {plan.name}: {places}",
            hint="A session loads a module from one place: use the same source everywhere.",
        )
    return next(iter(sources), None)


def _facts(
    module: str,
    plan: ResolvedPlan,
    entries: list[SourcedModule],
    considered: tuple[Considered, ...],
    resolved: ResolvedSource | None,
    facts: ModuleFacts | None,
    failure: Exception | None,
) -> dict[str, Any]:
    return {
        "id": module,
        "type": facts.kind if facts else None,
        "summary": facts.summary if facts else None,
        "plan": plan.name,
        "entries": [{"at": str(entry.at), "left_out": entry.left_out} for entry in entries],
        "place": resolved.place if resolved else None,
        "kind": resolved.kind if resolved else None,
        "source": resolved.text if resolved else None,
        "version": resolved.version if resolved else None,
        "commit": resolved.commit if resolved else None,
        "archive": resolved.archive if resolved else None,
        "content": resolved.content_hash if resolved and not resolved.installed else None,
        "folder": _folder(resolved),
        "entry_point": resolved.entry_point if resolved else None,
        "requirements": dict(resolved.requirements) if resolved else {},
        "requires": [
            requirement.written
            for requirement in plan.requires.get(module, ())
            if not requirement.if_imported
        ],
        "considered": [place._asdict() for place in considered],
        "config_schema": facts.config if facts else None,
        "problem": facts.problem if facts else None,
        "error": str(failure) if failure else None,
    }


def _folder(resolved: ResolvedSource | None) -> str | None:
    try:
        return str(resolved.resolve()) if resolved else None
    except ModuleNotFoundError:
        # The metadata exists without its package, which the import has reported.
        return None


# -- as text -----------------------------------------------------------------------------


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    yield f"{facts['id']}  {facts['summary']}" if facts["summary"] else facts["id"]
    needs = ", ".join(f"{name} {version}" for name, version in facts["requirements"].items())
    places = ", ".join(
        f"{entry['at']} (skipped here)" if entry["left_out"] else entry["at"]
        for entry in facts["entries"]
    )
    rows = [
        ("type", facts["type"]),
        ("from", f"{facts['source']} ({facts['kind']})" if facts["source"] else None),
        ("version", facts["version"]),
        ("commit", facts["commit"]),
        ("archive", facts["archive"]),
        ("content", facts["content"]),
        ("folder", facts["folder"]),
        ("entry point", facts["entry_point"]),
        ("requires", needs or None),
        ("plan adds", ", ".join(facts["requires"]) or None),
        ("in the plan", f"{facts['plan']}: {places or 'not used'}"),
        ("problem", facts["problem"]),
    ]
    for label, value in rows:
        if value:
            yield f"  {label.ljust(11)}  {one_line(value, 400)}"
    yield ""
    yield "Search order (first match wins):"
    for place in facts["considered"]:
        mark = ">" if place["chosen"] else " "
        text = f"{place['found']}: {place['reason']}" if place["found"] else place["reason"]
        yield f"{mark} {place['place'].ljust(11)}  {one_line(text, 400)}"
    if facts["config_schema"]:
        yield ""
        yield from _config_lines(facts["config_schema"])


def _config_lines(schema: dict[str, Any]) -> Iterator[str]:
    keys: dict[str, Any] = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    current = current_keys(keys)
    yield "config:" if current else "config: none"
    width = max(map(len, keys), default=0)
    for name, rule in ((name, keys[name]) for name in current):
        parts = [_describe_type(rule), "required" if name in required else ""]
        if "default" in rule and rule["default"] is not None:
            parts.append(f"default {json.dumps(rule['default'], ensure_ascii=False)}")
        described = str(rule.get("description") or "")
        text = ", ".join(filter(None, parts)) + (f". {described}" if described else "")
        yield f"  {name.ljust(width)}  {one_line(text, 200)}"
    if len(current) == len(keys):
        return
    yield "also accepted, but deprecated:"
    for name, rule in keys.items():
        if name not in current:
            yield f"  {name.ljust(width)}  {one_line(str(rule.get('description') or ''), 200)}"


def _describe_type(rule: dict[str, Any]) -> str:
    if "enum" in rule:
        return " | ".join(json.dumps(option, ensure_ascii=False) for option in rule["enum"])
    if "const" in rule:
        return json.dumps(rule["const"], ensure_ascii=False)
    named = rule.get("type")
    if isinstance(named, list):
        return " | ".join(map(str, named))
    if isinstance(named, str):
        return named
    alternatives = [option for option in rule.get("anyOf") or () if option.get("type") != "null"]
    return (
        " | ".join(dict.fromkeys(map(_describe_type, alternatives))) if alternatives else "object"
    )
