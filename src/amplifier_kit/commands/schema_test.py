"""`amplifier schema test`."""

from __future__ import annotations

import typer

from amplifier_app.base.json_text import json_text
from amplifier_kit.plan_tests.grammar import test_schema

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def test() -> None:
    """Print the JSON Schema of test files."""
    print(json_text(test_schema()))
