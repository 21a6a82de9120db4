"""`amplifier plan diff`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.explain import Change, differences, dotted, show_place
from amplifier_app.plan.tree.nodes import Node, plain_data
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.loading import load_plan, load_profile
from amplifier_app.trust import folder_if_trusted

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}

diff_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@diff_app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A profile or a plan file.")],
    new: Annotated[
        str, typer.Argument(metavar="B", help="The profile or plan file to compare it with.")
    ],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 9 if there are differences.")
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
        print(json_text([_facts(change) for change in changes]))
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


def _facts(change: Change) -> dict[str, Any]:
    sides = {"old": change.old, "new": change.new}
    values = {
        side: None if node is None else {"value": plain_data(node), "at": str(node.at)}
        for side, node in sides.items()
    }
    return {"path": dotted(change.path), "change": change.kind, **values}


def _line(change: Change) -> str:
    sides = [node for node in (change.old, change.new) if node is not None]
    values = " → ".join(_short(node) for node in sides)
    places = " → ".join(one_line(_place(node)) for node in sides)
    return f"{_SIGNS[change.kind]} {one_line(dotted(change.path))}: {values}  ({places})"


def _place(node: Node) -> str:
    """Return the place of a value: relative to the working directory, or to the home with `~`."""
    place = show_place(node)
    for folder, short in ((Path.cwd(), ""), (Path.home(), f"~{os.sep}")):
        if place.startswith(f"{folder}{os.sep}"):
            return short + place[len(str(folder)) + 1 :]
    return place


def _short(node: Node) -> str:
    return one_line(json.dumps(plain_data(node), ensure_ascii=False), 60)
