"""`amplifier schema`."""

from __future__ import annotations

from importlib.resources import files

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.commands.group import command_group

app = command_group(
    "schema",
    "amplifier_app.commands",
    {
        "result": ("schema", "Print the JSON Schema of `--output json`."),
        "events": ("schema", "Print the JSON Schema of the lines of `--output stream-json`."),
        "plan": ("schema", "Print the JSON Schema of plans and profiles."),
    },
)
"""`amplifier schema`; other packages add the schemas of what they read and write."""

result_app = typer.Typer(add_completion=False, rich_markup_mode=None)
events_app = typer.Typer(add_completion=False, rich_markup_mode=None)
plan_app = typer.Typer(add_completion=False, rich_markup_mode=None)


def read_schema(name: str) -> str:
    """Return a stored JSON Schema of the program's output: `result` or `events`."""
    file = files("amplifier_app.render") / "schemas" / f"{name}.schema.json"
    return file.read_text(encoding="utf-8").rstrip()


@result_app.command()
def result() -> None:
    """Print the JSON Schema of `--output json`."""
    print(read_schema("result"))


@events_app.command()
def events() -> None:
    """Print the JSON Schema of the lines of `--output stream-json`."""
    print(read_schema("events"))


@plan_app.command()
def plan() -> None:
    """Print the JSON Schema of plans and profiles."""
    from amplifier_app.plan.schema.json_schema import plan_schema

    print(json_text(plan_schema()))
