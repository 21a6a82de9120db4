"""`amplifier plan schema`."""

from __future__ import annotations

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.plan.schema.json_schema import plan_schema

schema_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@schema_app.command()
def schema() -> None:
    """Print the JSON Schema of plans and profiles.

    Includes the config of bundled modules. To use it in an editor with a YAML language server,
    start a plan with "# yaml-language-server: $schema=FILE". Settings have theirs at
    FILE#/$defs/settings, agents at FILE#/$defs/agent.
    """
    print(json_text(plan_schema()))
