"""`amplifier module show`: where a module comes from, why, and its config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import outcome_of
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.commands.module.description import ModuleFacts, facts_of
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.module_sources import SourcedModule, sourced_modules
from amplifier_app.plan.schema.module_schemas import current_keys
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_app.sources.resolved import Considered, ResolvedSource
from amplifier_core.module_sources import ModuleNotFoundError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_plan_options("profile", "plan", "sets")
def show(
    module: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the module, for example tool-bash.")
    ],
    *,
    request: Request,
    offline: Annotated[bool, typer.Option("--offline", help="Do not download anything.")] = False,
    output: OutputOption = "text",
) -> None:
    """Show where a module comes from, which places were searched, and its config.

    \b
      amplifier module show tool-bash
      amplifier module show ./my-tool

    Downloads the module if it is not on this machine. Exits with 3 if it is unavailable.
    """
    chosen = chosen_plan(request, keep_unset=True)
    entries = [one for one in sourced_modules(chosen) if one.module == module]
    source = _one_source(chosen, entries)
    resolver = resolver_for(chosen, offline=True if offline else None)
    considered = resolver.considered(module, source)
    found = facts = failure = None
    try:
        found = resolver.resolve(module, source)
        facts = facts_of(module, found)
    except (SourceError, ModuleNotFoundError) as error:
        failure = error
    shown = _facts(module, chosen, entries, considered, found, facts, failure)
    if output == "json":
        # The object on stdout contains the error.
        print(json_text(shown))
        raise typer.Exit(outcome_of(failure).exit_code if failure is not None else 0)
    for line in _lines(shown):
        print(for_terminal(line))
    if failure is not None:
        raise failure


def _one_source(plan: ResolvedPlan, entries: list[SourcedModule]) -> str | None:
    sources = {one.source: one for one in entries}
    if len(sources) > 1:
        places = "; ".join(f"{one.written or 'no source'} ({one.at})" for one in sources.values())
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
    found: ResolvedSource | None,
    facts: ModuleFacts | None,
    failure: Exception | None,
) -> dict[str, Any]:
    return {
        "id": module,
        "type": facts.kind if facts else None,
        "summary": facts.summary if facts else None,
        "plan": plan.name,
        "entries": [{"at": str(one.at), "left_out": one.left_out} for one in entries],
        "place": found.place if found else None,
        "kind": found.kind if found else None,
        "source": found.text if found else None,
        "version": found.version if found else None,
        "commit": found.commit if found else None,
        "archive": found.archive if found else None,
        "content": found.content_hash if found and not found.installed else None,
        "folder": _folder(found),
        "entry_point": found.entry_point if found else None,
        "requirements": dict(found.requirements) if found else {},
        "requires": [one.written for one in plan.requires.get(module, ()) if not one.if_imported],
        "considered": [one._asdict() for one in considered],
        "config_schema": facts.config if facts else None,
        "problem": facts.problem if facts else None,
        "error": str(failure) if failure else None,
    }


def _folder(found: ResolvedSource | None) -> str | None:
    try:
        return str(found.resolve()) if found else None
    except ModuleNotFoundError:
        # The metadata exists without its package, which the import has reported.
        return None


# -- as text -----------------------------------------------------------------------------


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"{shown['id']}  {shown['summary']}" if shown["summary"] else shown["id"]
    needs = ", ".join(f"{name} {version}" for name, version in shown["requirements"].items())
    places = ", ".join(
        f"{one['at']} (skipped here)" if one["left_out"] else one["at"] for one in shown["entries"]
    )
    rows = [
        ("type", shown["type"]),
        ("from", f"{shown['source']} ({shown['kind']})" if shown["source"] else None),
        ("version", shown["version"]),
        ("commit", shown["commit"]),
        ("archive", shown["archive"]),
        ("content", shown["content"]),
        ("folder", shown["folder"]),
        ("entry point", shown["entry_point"]),
        ("requires", needs or None),
        ("plan adds", ", ".join(shown["requires"]) or None),
        ("in the plan", f"{shown['plan']}: {places or 'not used'}"),
        ("problem", shown["problem"]),
    ]
    for label, value in rows:
        if value:
            yield f"  {label.ljust(11)}  {one_line(value, 400)}"
    yield ""
    yield "Search order (first match wins):"
    for one in shown["considered"]:
        mark = ">" if one["chosen"] else " "
        text = f"{one['found']}: {one['reason']}" if one["found"] else one["reason"]
        yield f"{mark} {one['place'].ljust(11)}  {one_line(text, 400)}"
    if shown["config_schema"]:
        yield ""
        yield from _config_lines(shown["config_schema"])


def _config_lines(schema: dict[str, Any]) -> Iterator[str]:
    keys: dict[str, Any] = schema.get("properties") or {}
    required: list[str] = schema.get("required") or []
    current = current_keys(keys)
    yield "config:" if current else "config: none"
    width = max(map(len, keys), default=0)
    for name, rule in ((name, keys[name]) for name in current):
        parts = [_type_of(rule), "required" if name in required else ""]
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


def _type_of(rule: dict[str, Any]) -> str:
    if "enum" in rule:
        return " | ".join(json.dumps(one, ensure_ascii=False) for one in rule["enum"])
    if "const" in rule:
        return json.dumps(rule["const"], ensure_ascii=False)
    named = rule.get("type")
    if isinstance(named, list):
        return " | ".join(map(str, named))
    if isinstance(named, str):
        return named
    alternatives = [one for one in rule.get("anyOf") or () if one.get("type") != "null"]
    return " | ".join(dict.fromkeys(map(_type_of, alternatives))) if alternatives else "object"
