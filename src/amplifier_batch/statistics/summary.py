"""The end of a batch: its exit code and summary line."""

from __future__ import annotations

import shlex
from collections import Counter
from decimal import Decimal
from typing import Any

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.runtime import describe
from amplifier_batch.options import DEFAULT_WORKERS
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import WAITING, Counts, SentBatch
from amplifier_batch.record.waiting_rows import approve_command
from amplifier_batch.statistics.forecast import Forecast, make_forecast
from amplifier_batch.statistics.pass_rates import pass_rates, rates_as_data, rates_in_words
from amplifier_support.clock import utc_time

_OF_THE_BATCH = (
    Ending.BUDGET,
    Ending.INTERRUPTED,
    Ending.TERMINATED,
    Ending.PIPE_CLOSED,
)
"""Outcomes whose exit codes say that the batch itself was stopped; rows that have them are failed rows."""


def outcome_of_batch(folder: BatchFolder, counts: Counts) -> Outcome:
    """The outcome of a batch whose rows have all ended."""
    failed = failed_outcomes(counts)
    what = shlex.quote(folder.shown)
    waiting = f"{counts.outcomes[WAITING]} of {counts.ended} {folder.unit}s wait for approval"
    answer = f"Answer: {approve_command(folder)}\nThen continue: amplifier batch resume {what}"
    if not failed:
        return Outcome(Ending.WAITING, waiting, answer) if counts.outcomes[WAITING] else OK
    # `unavailable` asks to try again, which does not help the others.
    others = failed.copy()
    del others[Ending.UNAVAILABLE.value]
    ending = Ending((others or failed).most_common(1)[0][0])
    if failed[Ending.CHECK_FAILED.value]:
        ending = Ending.CHECK_FAILED
    elif ending in _OF_THE_BATCH:
        ending = Ending.ERROR
    number = sum(failed.values())
    message = f"{number} of {counts.ended} {folder.unit}s failed: {in_words(failed)}"
    if folder.repeat > 1:
        message += f"; {rates_in_words(pass_rates(folder, counts))}"
    hint = (
        f"See why: amplifier batch report {what}\n"
        f"Run them again: amplifier batch retry {what} --only {','.join(sorted(failed))}"
    )
    if counts.outcomes[WAITING]:
        message, hint = f"{message}; {waiting}", f"{hint}\n{answer}"
    return Outcome(ending, message, hint)


def failed_outcomes(counts: Counts) -> Counter[str]:
    """The outcomes of rows that neither passed nor wait for approval."""
    failed = counts.outcomes.copy()
    del failed[Ending.OK.value], failed[WAITING]
    return +failed


def in_words(outcomes: Counter[str]) -> str:
    """`30 check_failed, 7 provider`."""
    return ", ".join(f"{number} {name}" for name, number in outcomes.most_common())


def totals(folder: BatchFolder, counts: Counts, *, running: bool) -> dict[str, Any]:
    """The progress of a batch, as JSON data."""
    runs = folder.runs
    forecast = forecast_batch(folder, counts)
    return {
        "schema_version": 1,
        "folder": folder.shown,
        "rows": int(folder.facts["rows"]),
        "repeat": folder.repeat,
        "runs": runs,
        "ended": counts.ended,
        "running": counts.running if running else 0,
        "pending": runs - counts.ended - (counts.running if running else 0),
        "outcomes": dict(sorted(counts.outcomes.items())),
        "pass_rates": rates_as_data(pass_rates(folder, counts)),
        "cost": {"usd": float(counts.cost), "cached_calls": counts.cached},
        "forecast": None if forecast is None else forecast._asdict(),
        "is_running": running,
        "economy": bool(folder.facts.get("economy")),
        "open_batches": [_as_data(batch) for batch in _open_batches(folder, counts)],
    }


def forecast_batch(folder: BatchFolder, counts: Counts) -> Forecast | None:
    """Return the forecast of a batch; None if there is none yet, or any more."""
    workers = folder.facts.get("workers") or DEFAULT_WORKERS
    # At batch prices rows wait for the provider, however many work.
    return make_forecast(counts, folder.runs, None if folder.facts.get("economy") else workers)


def _open_batches(folder: BatchFolder, counts: Counts) -> list[SentBatch]:
    # A row that ended at a limit can leave its batch open; after the last row, none waits.
    return [] if counts.ended == folder.runs else list(counts.open_batches.values())


def _as_data(batch: SentBatch) -> dict[str, Any]:
    sent = utc_time(batch.at).isoformat(timespec="seconds")
    return {"id": batch.id, "requests": batch.number, "sent": sent}


def cost_in_words(cost: Decimal, cached: int) -> str:
    """`$1.24 (12 answers cached)`; empty if nothing was paid and nothing was cached."""
    if not cached:
        return describe.cost(cost) if cost else ""
    paid = describe.cost(cost) if cost else "$0"
    return f"{paid} ({describe.count(cached, 'answer')} cached)"
