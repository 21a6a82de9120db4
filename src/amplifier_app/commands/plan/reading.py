"""`amplifier plan show|explain|diff`."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.explain import (
    Change,
    Explained,
    as_json,
    collect_origins,
    describe_place,
    differences,
    dotted,
    explain,
    show_place,
    yaml_text,
)
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.source_spec import without_password
from amplifier_app.plan.tree.nodes import MapNode, Node, plain_data
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.loading import load_plan, load_profile
from amplifier_app.trust import folder_if_trusted


@takes_plan_options("profile", "plan", "provider", "model", "sets")
def show(
    *,
    request: Request,
    origins: Annotated[bool, option("--origins", "Show the file and line of each value.")] = False,
    output: Annotated[Literal["yaml", "json"], option("--output", "Output format.")] = "yaml",
) -> None:
    """Show the plan that `run` would use, merged from all its files.

    \b
      amplifier plan show
      amplifier plan show --origins -f plan.yaml
      amplifier plan show --output json

    Secrets are masked. Variables that are not set are kept as written and listed on stderr.
    """
    chosen = chosen_plan(request, keep_unset=True)
    print_plan(chosen, as_json=output == "json", origins=origins)


def print_plan(plan: ResolvedPlan, *, as_json: bool, origins: bool = False) -> None:
    """Print a plan loaded with `keep_unset`, and notes about it on stderr."""
    tree = masked_tree(plan.tree)
    if not as_json:
        for note in plan.notes:
            to_stderr(f"amplifier: {one_line(note)}")
        for variable in plan.unset:
            to_stderr(f"amplifier: {variable.name} is not set ({one_line(str(variable.at))})")
        for module, override in plan.sources.items():
            place = f"{without_password(override.source)} ({override.at})"
            to_stderr(f"amplifier: {module} comes from {one_line(place)}")
        print(for_terminal(yaml_text(tree, origins=origins)), end="")
        return
    merged = plan.merged
    facts = {
        "name": plan.name,
        "digest": plan.digest,
        "files": list(merged.chain),
        "settings": list(merged.overlays),
        "project": None if plan.project is None else str(plan.project),
        "left_out": [
            {"key": left.key, "module": left.module, "reason": left.reason, "at": str(left.at)}
            for left in plan.dropped
        ],
        "notes": plan.notes,
        "unset": [{"name": variable.name, "at": str(variable.at)} for variable in plan.unset],
        "sources": {
            module: {"source": without_password(override.source), "at": str(override.at)}
            for module, override in plan.sources.items()
        },
        "plan": plain_data(tree),
    }
    if origins:
        facts["origins"] = collect_origins(tree)
    print(json_text(facts))


@takes_plan_options("profile", "plan", "provider", "model", "sets")
def explain_command(
    path: Annotated[str, argument("PATH.TO.KEY", "For example tools.tool-bash.config.timeout.")],
    *,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Show a value of the plan, where it is set, and what it replaced, file by file.

    \b
      amplifier plan explain session.orchestrator
      amplifier plan explain tools.tool-bash -f plan.yaml

    For a config key that is not set, shows its default and description.
    """
    chosen = chosen_plan(request, keep_unset=True)
    try:
        parts = explain(chosen, path)
    except ConfigError:
        if not os.path.isfile(path):
            raise
        hint = (
            f"Pass a plan file with -f: amplifier plan explain PATH.TO.KEY -f {shlex.quote(path)}"
        )
        raise UsageError(f"{path!r} is a file, not a key of the plan", hint=hint) from None
    if output == "json":
        print(json_text([_facts(part) for part in parts]))
        return
    for index, part in enumerate(parts):
        if index:
            print()
        for line in _lines(part):
            print(for_terminal(line))


def _facts(explained: Explained) -> dict[str, Any]:
    value: dict[str, Any] = {
        "path": dotted(explained.path),
        "value": None,
        "at": None,
        "replaced": [],
    }
    if explained.value is not None:
        value = as_json(explained.value)
    rule = explained.rule or {}
    known = {key: rule[key] for key in ("default", "description") if key in rule}
    mistake = {} if explained.mistake is None else {"mistake": explained.mistake}
    return {**value, "set": explained.value is not None, **known, **mistake}


def _lines(explained: Explained) -> list[str]:
    name = dotted(explained.path)
    rows: list[tuple[str, str]] = []
    if explained.value is None:
        text = f"{name} is not set"
    else:
        text = yaml_text(MapNode({name: explained.value.node}, explained.value.node.at)).rstrip()
        rows.append(("set in", describe_place(explained.value.node)))
        if explained.value.written is not None:
            rows.append(("written as", explained.value.written))
        rows += [
            ("but", text) for text in (explained.value.gone, explained.mistake) if text is not None
        ]
        rows += [
            ("replaces", f"{_short(old, 80)}  ({describe_place(old)})")
            for old in explained.value.replaced
        ]
    rule = explained.rule or {}
    if "default" in rule:
        rows.append(("default", json.dumps(rule["default"], ensure_ascii=False)))
    if "description" in rule:
        rows.append(("meaning", str(rule["description"])))
    width = max((len(label) for label, _ in rows), default=0)
    details = [f"  {label.ljust(width)}  {one_line(value, 400)}" for label, value in rows]
    return [*text.splitlines(), *details]


def _short(node: Node, width: int) -> str:
    return one_line(json.dumps(plain_data(node), ensure_ascii=False), width)


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def diff(
    old: Annotated[str, argument("A", "A profile or a plan file.")],
    new: Annotated[str, argument("B", "The profile or plan file to compare it with.")],
    exit_code: Annotated[
        bool, option("--exit-code", "Exit with 9 if there are differences.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Show how two plans differ, with everything they extend.

    \b
      amplifier plan diff default plan.yaml

    Compares them as written: variables are not replaced, and providers are included even without
    credentials on this machine.
    """
    project = folder_if_trusted()
    changes = differences(_read_merged(old, project), _read_merged(new, project))
    if output == "json":
        print(json_text([_describe_change(change) for change in changes]))
    else:
        for change in changes:
            print(for_terminal(_line(change)))
    if changes and exit_code:
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)


def _read_merged(name: str, project: Path | None) -> MergedPlan:
    """The plan of a profile name or a file; a folder or an extension marks a file."""
    path = Path(name)
    is_file = len(path.parts) > 1 or path.suffix in (".yaml", ".yml", ".md") or path.is_absolute()
    loaded = load_plan(name, project=project) if is_file else load_profile(name, project=project)
    return loaded.merged


def _describe_change(change: Change) -> dict[str, Any]:
    sides = {"old": change.old, "new": change.new}
    values = {
        side: None if node is None else {"value": plain_data(node), "at": str(node.at)}
        for side, node in sides.items()
    }
    return {"path": dotted(change.path), "change": change.kind, **values}


def _line(change: Change) -> str:
    sides = [node for node in (change.old, change.new) if node is not None]
    values = " → ".join(_short(node, 60) for node in sides)
    places = " → ".join(one_line(_place(node)) for node in sides)
    return f"{_SIGNS[change.kind]} {one_line(dotted(change.path))}: {values}  ({places})"


def _place(node: Node) -> str:
    """Return the place of a value: relative to the working directory, or to the home with `~`."""
    place = show_place(node)
    for folder, short in ((Path.cwd(), ""), (Path.home(), f"~{os.sep}")):
        if place.startswith(f"{folder}{os.sep}"):
            return short + place[len(str(folder)) + 1 :]
    return place
