"""`amplifier batch status`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from amplifier_app.base.json_text import json_text
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.options import FolderArgument
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.statistics.pass_rates import CONFIDENCE, PassRate
from amplifier_batch.statistics.summary import cost_in_words, totals

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def status(folder: FolderArgument, output: OutputOption = "text") -> None:
    """Show the progress of a batch, also while it runs.

    \b
      amplifier batch status out
      amplifier batch status out --output json | jq .ended
    """
    batch = BatchFolder(folder)
    counts, running = batch.counts()
    found = totals(batch, counts, running=running)
    if output == "json":
        print(json_text(found))
        return
    state = "running" if running else ("waiting to be resumed" if found["waiting"] else "ended")
    print(
        f"{found['ended']:,} of {found['runs']:,} {batch.unit}s, {state}{_and_cost(cost_in_words(counts.cost))}"
        f"{', at batch prices' if found['economy'] else ''}"
    )
    for one in found["open_batches"]:
        name = f"batch {one['id']}" if one["id"] else "a batch whose id is not known yet"
        requests = describe.count(one["requests"], "request")
        print(f"waiting for {name} with {requests}, sent {describe.age(one['sent'])}")
    rows = [
        *((name, f"{number:,}") for name, number in found["outcomes"].items()),
        *((name, f"{found[name]:,}") for name in ("running", "waiting") if found[name]),
    ]
    print_table(["OUTCOME", Column(f"{batch.unit}s".upper(), right=True)], rows)
    rates = [PassRate(**one) for one in found["pass_rates"]]
    if rates:
        name = "pass@{}" if batch.repeat > 1 else "passed"
        shown = [(name.format(rate.k), *_percent(rate[1:4])) for rate in rates]
        heads = (Column(head, right=True) for head in ("RATE", "FROM", "TO"))
        print()
        print_table([f"{CONFIDENCE:.0%} INTERVAL", *heads], shown)


def _percent(values: Sequence[float]) -> list[str]:
    return [f"{value:.1%}" for value in values]


def _and_cost(cost: str) -> str:
    return f", {cost}" if cost else ""
