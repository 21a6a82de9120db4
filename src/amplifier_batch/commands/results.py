"""`amplifier batch status|set`, and `amplifier schema batch`."""

from __future__ import annotations

import json
from collections.abc import Sequence

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
from typing import Any

from amplifier_app.base.json_text import json_text
from amplifier_app.commands.schema import read_schema
from amplifier_app.commands.typer_options import takes_options
from amplifier_app.render.table import Column, OutputOption, print_table
from amplifier_app.runtime import describe
from amplifier_batch.options import DEFAULT_WORKERS, BatchOptions, FolderArgument
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import WAITING
from amplifier_batch.record.results import batch_schema
from amplifier_batch.record.waiting_rows import approve_command, find_waiting
from amplifier_batch.statistics.forecast import Forecast
from amplifier_batch.statistics.pass_rates import CONFIDENCE, PassRate
from amplifier_batch.statistics.summary import cost_in_words, totals

_MAX_QUESTIONS = 20


def status(folder: FolderArgument, output: OutputOption = "text") -> None:
    """Show the progress of a batch, also while it runs.

    \b
      amplifier batch status out
      amplifier batch status out --output json | jq .ended
    """
    batch = BatchFolder(folder)
    counts, running = batch.counts()
    facts = totals(batch, counts, running=running)
    waiting = list(find_waiting(batch)) if counts.outcomes[WAITING] else []
    facts["questions"] = [row.as_data() for row in waiting]
    if output == "json":
        print(json_text(facts))
        return
    state = "running" if running else ("not complete" if facts["pending"] else "ended")
    cost = cost_in_words(counts.cost, counts.cached)
    print(
        f"{facts['ended']:,} of {facts['runs']:,} {batch.unit}s, {state}{f', {cost}' if cost else ''}"
        f"{', at batch prices' if facts['economy'] else ''}"
    )
    if facts["forecast"] is not None:
        print(f"{facts['runs']:,} {batch.unit}s: {Forecast(**facts['forecast']).text}")
    for open_batch in facts["open_batches"]:
        name = (
            f"batch {open_batch['id']}" if open_batch["id"] else "a batch whose id is not known yet"
        )
        requests = describe.count(open_batch["requests"], "request")
        print(f"waiting for {name} with {requests}, sent {describe.age(open_batch['sent'])}")
    rows = [
        *(
            ("waiting for approval" if name == WAITING else name, f"{number:,}")
            for name, number in facts["outcomes"].items()
        ),
        *((name, f"{facts[name]:,}") for name in ("running", "pending") if facts[name]),
    ]
    print_table(["OUTCOME", Column(f"{batch.unit}s".upper(), right=True)], rows)
    rates = [PassRate(**pass_rate) for pass_rate in facts["pass_rates"]]
    if rates:
        name = "pass@{}" if batch.repeat > 1 else "passed"
        entries = [(name.format(rate.k), *_percent(rate[1:4])) for rate in rates]
        heads = (Column(head, right=True) for head in ("RATE", "FROM", "TO"))
        print()
        print_table([f"{CONFIDENCE:.0%} INTERVAL", *heads], entries)
    if waiting:
        print()
        entries = [(row.name, *call) for row in waiting for call in row.list_calls()]
        columns = [Column("WAITS", fit="middle"), "", Column("CALL", fit="end"), "STATE"]
        print_table(columns, entries[:_MAX_QUESTIONS])
        if len(entries) > _MAX_QUESTIONS:
            print(f"… and {len(entries) - _MAX_QUESTIONS:,} more")
        print(f"\nAnswer with: {approve_command(batch)}")


def _percent(values: Sequence[float]) -> list[str]:
    return [f"{value:.1%}" for value in values]


@takes_options(BatchOptions, "workers", "max_cost", "max_forecast", "stop_after")
def set_limits(
    folder: FolderArgument, *, options: BatchOptions, output: OutputOption = "text"
) -> None:
    """Change the limits of a batch, also while it runs. Without options, shows them.

    \b
      amplifier batch set out
      amplifier batch set out --workers 2 --max-cost 20

    A running batch applies them within about a second. With fewer workers, running rows are not
    stopped; with a lower --max-cost, --max-forecast or --stop-after, the batch may stop.
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
        (
            "forecast of all rows",
            f"${forecast}" if (forecast := limits["max_forecast"]) else "no limit",
        ),
        ("failed rows", failures or "no limit"),
    ]
    print_table(["", Column("AT MOST", right=True)], rows)


def _limits(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "workers": facts.get("workers") or DEFAULT_WORKERS,
        "max_cost": facts.get("max_cost"),
        "max_forecast": facts.get("max_forecast"),
        "stop_after": facts.get("stop_after"),
    }


def batch() -> None:
    """Print the JSON Schema of the lines of results.jsonl."""
    print(json_text(batch_schema(json.loads(read_schema("result")))))
