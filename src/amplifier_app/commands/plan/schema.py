"""`amplifier plan schema`."""

from __future__ import annotations

import json

import typer

from amplifier_app.plan.schema import plan_schema
from amplifier_app.render.table import Format, OutputOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def schema(output: OutputOption = Format.JSON) -> None:
    """Print the JSON Schema of plans and profiles, for editors; it is JSON in either format.

    The config of bundled modules is part of it. An editor with a YAML server reads it from the
    first line of a plan: "# yaml-language-server: $schema=FILE"; settings are at
    FILE#/$defs/settings, agents at FILE#/$defs/agent.
    """
    print(json.dumps(plan_schema(), indent=2))
