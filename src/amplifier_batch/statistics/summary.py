"""The progress and the end of a batch: forecasts of its cost and time, its exit code and summary line."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from decimal import Decimal
from typing import Any

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.runtime import describe
from amplifier_batch.options import DEFAULT_WORKERS
from amplifier_batch.record.folder import BatchFolder, approve_command
from amplifier_batch.record.progress import WAITING, Counts, SentBatch
from amplifier_batch.statistics.pass_rates import pass_rates, rates_as_data, rates_in_words
from amplifier_batch.statistics.score_means import student_quantile
from amplifier_support.clock import utc_time
from amplifier_support.named_tuple import NamedTuple

ROWS_NEEDED = 20
"""The rows that must have ended; the interval of fewer is too wide to be of use."""


class Forecast(NamedTuple):
    """The end of a batch.

    Attributes:
        cost: The most likely cost of all rows, in US dollars; None without enough rows with a price.
        low: The lower end of the interval that has it in 95 of 100 batches, if the rows are in no order.
        high: The upper end.
        seconds_left: Seconds until the last row has ended; None if they cannot be known.
    """

    cost: float | None
    low: float | None
    high: float | None
    seconds_left: float | None

    @property
    def text(self) -> str:
        """`$312.00 ($280.00 to $350.00), about 4.0 h left`, as far as it is known."""
        parts: list[str] = []
        if self.cost is not None:
            parts.append(self.cost_text)
        if self.seconds_left is not None:
            parts.append(f"about {describe_time_left(self.seconds_left)} left")
        return ", ".join(parts)

    @property
    def cost_text(self) -> str:
        """`$312.00 ($280.00 to $350.00)`."""
        cost, low, high = (describe.cost(Decimal(str(amount))) for amount in self[:3])
        return f"{cost} ({low} to {high})"


def describe_time_left(seconds: float) -> str:
    """`80 s`, `12 min`, `4.0 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def make_forecast(counts: Counts, runs: int, workers: int | None) -> Forecast | None:
    """Return the forecast of a batch; None before enough rows have ended, and after the last row.

    Args:
        counts: Its progress.
        runs: How many rows it has, each as often as it is repeated.
        workers: How many rows run at once; None if that does not decide how long they take, as at batch prices.
    """
    cost = _forecast_cost(counts, runs)
    left, seconds = runs - counts.ended, None
    if workers is not None and counts.timed >= ROWS_NEEDED and left > 0:
        seconds = counts.seconds / counts.timed * left / min(workers, left)
    if cost is None and seconds is None:
        return None
    return Forecast(*(cost or (None, None, None)), seconds)


def _forecast_cost(counts: Counts, runs: int) -> tuple[float, float, float] | None:
    """The cost of all rows, and the ends of its interval."""
    ended, left = counts.priced, runs - counts.ended
    if ended < ROWS_NEEDED or left <= 0 or not counts.ended_cost:
        return None
    # Rows that were stopped have cost something, too, and will be continued.
    spent, mean = float(counts.cost), counts.ended_cost / ended
    variance = max(0.0, (counts.squares - ended * mean**2) / (ended - 1))
    # Of the sum of the rows that are left, and of the mean that they are estimated with.
    error = math.sqrt(variance * left * (1 + left / ended)) * student_quantile(ended - 1)
    cost = spent + left * mean
    return cost, max(spent, cost - error), cost + error


_OF_THE_BATCH = (Ending.BUDGET, Ending.INTERRUPTED, Ending.TERMINATED, Ending.PIPE_CLOSED)
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
    is_known = counts.cost or counts.priced >= counts.ended
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
        "cost": {"usd": float(counts.cost) if is_known else None, "cached_calls": counts.cached},
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
