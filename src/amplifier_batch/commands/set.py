"""`amplifier batch set`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Any

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_batch.options import DEFAULT_WORKERS, BatchOptions, FolderArgument
from amplifier_batch.record.folder import BatchFolder

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_options_of(BatchOptions, "workers", "max_cost", "stop_after")
def set_limits(
    folder: FolderArgument, *, options: BatchOptions, output: OutputOption = "text"
) -> None:
    """Change the limits of a batch, also while it runs. Without options, shows them.

    \b
      amplifier batch set out
      amplifier batch set out --workers 2 --max-cost 20

    A running batch applies them within about a second. With fewer workers, running rows are not
    stopped; with a lower --max-cost or --stop-after, the batch may stop.
    """
    options = options.validate()
    batch = BatchFolder(folder)
    batch.change(options.settings())
    limits = _limits(batch.facts)
    if output == "json":
        print(json_text({"schema_version": 1, **limits}))
        return
    cost, failures = limits["max_cost"], limits["stop_after"]
    rows = [
        ("workers", str(limits["workers"])),
        ("cost of all rows", f"${cost}" if cost else "no limit"),
        ("failed rows", failures or "no limit"),
    ]
    print_table(["", Column("AT MOST", right=True)], rows)


def _limits(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "workers": facts.get("workers") or DEFAULT_WORKERS,
        "max_cost": facts.get("max_cost"),
        "stop_after": facts.get("stop_after"),
    }
