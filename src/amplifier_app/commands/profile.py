"""`amplifier profile`: list, show and choose named plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.commands.group import eager_group
from amplifier_app.commands.plan.reading import print_plan
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.settings import ScopeOption, changing, report
from amplifier_app.commands.typer_options import argument
from amplifier_app.plan.documents.plan_files import DEFAULT_PROFILE
from amplifier_app.plan.documents.profile_paths import ProfileFile, profile_files
from amplifier_app.plan.documents.scopes import USER, read_settings
from amplifier_app.plan.tree.edit import set_value
from amplifier_app.plan.tree.nodes import read_text
from amplifier_app.render.table import Column, OutputOption, print_listing
from amplifier_app.sources.loading import load_profile
from amplifier_app.trust import folder_if_trusted

app = eager_group("List, show and choose profiles.")


@app.command("list")
def list_profiles(output: OutputOption = "text") -> None:
    """List profiles: those of a trusted project, your own, and the bundled ones.

    The profile marked with * is the default.
    """
    project = folder_if_trusted()
    chosen = read_text(read_settings(project).profile) or DEFAULT_PROFILE
    files = reversed(list(profile_files(project)))
    profiles = list({profile.name: profile for profile in files}.values())
    rows = [_facts(profile, project, chosen) for profile in sorted(profiles)]
    cells = [
        (
            f"{row['name']} *" if row["chosen"] else row["name"],
            row["scope"],
            row["description"] or row["problem"],
        )
        for row in rows
    ]
    columns = (Column("PROFILE"), Column("FROM", drop=1), Column("DESCRIPTION", "wrap", least=30))
    print_listing(output, rows, columns, cells)


def _facts(profile: ProfileFile, project: Path | None, chosen: str) -> dict[str, Any]:
    facts = {
        "name": profile.name,
        "scope": profile.scope,
        "path": str(profile.path),
        "chosen": profile.name == chosen,
    }
    try:
        document = load_profile(profile.name, project=project).merged.document
    except ConfigError as error:
        # One invalid file must not hide the others; `profile show` reports all its problems.
        return {**facts, "description": "", "problem": f"invalid: {str(error).splitlines()[0]}"}
    description = read_text(document.items.get("description")) or ""
    return {**facts, "description": description, "problem": ""}


@app.command()
def show(
    name: Annotated[str, argument("NAME", "Name of the profile.")],
    output: OutputOption = "text",
) -> None:
    """Show a profile merged with everything it extends and your settings.

    Secrets are masked. Same as `amplifier plan show --profile NAME`.
    """
    plan = chosen_plan(Request(profile=name), keep_unset=True)
    print_plan(plan, as_json=output == "json")


@app.command()
def use(
    name: Annotated[str, argument("NAME", "Name of the profile.")],
    scope: ScopeOption = None,
) -> None:
    """Make a profile the default (`profile:` in settings).

    \b
      amplifier profile use local
      amplifier profile use review --scope project

    Without --scope, changes settings.local.yaml of the project, or outside a project your own
    settings.
    """
    with changing(scope, in_project="local") as where:
        # The user's own settings apply everywhere, where the project's profiles do not exist.
        load_profile(name, project=None if where.scope == USER else where.project)
        set_value(where.file, ("profile",), name)
        nearest, warning = read_settings(where.project).profile, None
        if nearest is not None and nearest.at.file != str(where.file):
            warning = f"{read_text(nearest)} is still the default here, set in {nearest.at}"
        report(where, f"{name} is now the default profile", warning)
