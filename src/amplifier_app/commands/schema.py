"""`amplifier schema`."""

from __future__ import annotations

from importlib.resources import files

from amplifier_app.base.json_text import json_text
from amplifier_app.commands.group import command_group
from amplifier_app.plan.schema.json_schema import plan_schema

app = command_group(
    "schema",
    "amplifier_app.commands",
    {
        "result": ("schema:result", "Print the JSON Schema of `--output json`."),
        "events": (
            "schema:events",
            "Print the JSON Schema of the lines of `--output stream-json`.",
        ),
        "plan": ("schema:plan", "Print the JSON Schema of plans and profiles."),
    },
)
"""`amplifier schema`; other packages add the schemas of what they read and write."""


def read_schema(name: str) -> str:
    """Return a stored JSON Schema of the program's output: `result` or `events`."""
    file = files("amplifier_app.render") / "schemas" / f"{name}.schema.json"
    return file.read_text(encoding="utf-8").rstrip()


def result() -> None:
    """Print the JSON Schema of `--output json`."""
    print(read_schema("result"))


def events() -> None:
    """Print the JSON Schema of the lines of `--output stream-json`."""
    print(read_schema("events"))


def plan() -> None:
    """Print the JSON Schema of plans and profiles.

    Includes the config of bundled modules. To use it in an editor with a YAML language server,
    start a plan with "# yaml-language-server: $schema=FILE". Settings have theirs at
    FILE#/$defs/settings, agents at FILE#/$defs/agent.
    """
    print(json_text(plan_schema()))
