"""`amplifier schema`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Annotated, Literal

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.batch.record.results import batch_schema
from amplifier_app.commands.test.grammar import test_schema
from amplifier_app.plan.schema.json_schema import plan_schema

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def schema(
    name: Annotated[
        Literal["result", "events", "batch", "plan", "test"],
        typer.Argument(
            metavar="NAME",
            help="'result' for --output json, 'events' for the lines of --output stream-json, "
            "'batch' for the lines of results.jsonl, 'plan' for plans and profiles, 'test' for test files.",
            show_default=False,
        ),
    ],
) -> None:
    """Print a JSON Schema of the program's output or input.

    \b
      amplifier schema result
      amplifier schema events > events.schema.json
      amplifier schema plan > plan.schema.json
    """
    if name == "plan":
        print(json_text(plan_schema()))
        return
    if name == "test":
        print(json_text(test_schema()))
        return
    if name == "batch":
        print(json_text(batch_schema(json.loads(_read_schema("result")))))
        return
    print(_read_schema(name).rstrip())


def _read_schema(name: str) -> str:
    file = files("amplifier_app.render") / "schemas" / f"{name}.schema.json"
    return file.read_text(encoding="utf-8")
