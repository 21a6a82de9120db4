"""`amplifier plan show`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.source_spec import without_password
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.plan.tree.writing import origins_of, yaml_text

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_plan_options("profile", "plan", "provider", "model", "sets")
def show(
    *,
    request: Request,
    origins: Annotated[
        bool, typer.Option("--origins", help="Show the file and line of each value.")
    ] = False,
    output: Annotated[
        Literal["yaml", "json"], typer.Option("--output", help="Output format.")
    ] = "yaml",
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
        for one in plan.unset:
            to_stderr(f"amplifier: {one.name} is not set ({one_line(str(one.at))})")
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
        "unset": [{"name": one.name, "at": str(one.at)} for one in plan.unset],
        "sources": {
            module: {"source": without_password(override.source), "at": str(override.at)}
            for module, override in plan.sources.items()
        },
        "plan": plain_data(tree),
    }
    if origins:
        facts["origins"] = origins_of(tree)
    print(json_text(facts))
