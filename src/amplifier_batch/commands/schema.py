"""`amplifier schema batch`."""

from __future__ import annotations

import json

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.commands.schema.command import read_schema
from amplifier_batch.record.results import batch_schema

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def batch() -> None:
    """Print the JSON Schema of the lines of results.jsonl."""
    print(json_text(batch_schema(json.loads(read_schema("result")))))
