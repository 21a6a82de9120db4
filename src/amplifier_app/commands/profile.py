"""`amplifier profile`: the plans that go by a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.commands.choosing import project_to_look_at
from amplifier_app.commands.listing import Format, OutputOption, table
from amplifier_app.errors import ConfigError
from amplifier_app.plan.model import load_profile
from amplifier_app.plan.nodes import text_of
from amplifier_app.plan.places import ProfileFile, profile_files
from amplifier_app.render.sanitize import for_terminal
from amplifier_app.stdio import to_stderr

app = typer.Typer(
    help="List and show profiles.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("list")
def list_profiles(output: OutputOption = Format.TEXT) -> None:
    """List the profiles: the project's if it is trusted, your own, and those that ship."""
    project = _project()
    files = reversed(list(profile_files(project)))
    found = list({profile.name: profile for profile in files}.values())
    rows = [_facts(profile, project) for profile in sorted(found)]
    if output is Format.JSON:
        print(json.dumps(rows, indent=2))
        return
    shown = [(row["name"], row["scope"], row["description"] or row["problem"]) for row in rows]
    for line in table(("PROFILE", "FROM", "DESCRIPTION"), shown):
        print(line)


def _project() -> Path | None:
    project = project_to_look_at()
    return None if project is None else project.folder


def _facts(profile: ProfileFile, project: Path | None) -> dict[str, Any]:
    facts = {"name": profile.name, "scope": profile.scope, "path": str(profile.path)}
    try:
        document = load_profile(profile.name, project=project).merged.document
    except ConfigError as error:
        # One broken file must not hide the others; `profile show` tells all about it.
        return {**facts, "description": "", "problem": f"broken: {str(error).splitlines()[0]}"}
    description = text_of(document.items.get("description")) or ""
    return {**facts, "description": description, "problem": ""}


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the profile.")],
    output: OutputOption = Format.TEXT,
) -> None:
    """Show what a profile mounts here and now, with everything it extends; secrets are masked."""
    plan = load_profile(name, project=_project()).resolve()
    for note in plan.notes:
        to_stderr(f"amplifier: {for_terminal(note)}")
    text = plan.to_yaml()
    if output is Format.JSON:
        import yaml

        facts = {"name": plan.name, "files": list(plan.merged.chain), "left_out": plan.notes}
        print(json.dumps({**facts, "plan": yaml.safe_load(text)}, indent=2))
        return
    print(for_terminal(text), end="")
