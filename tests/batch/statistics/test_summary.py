"""The exit code of a batch whose rows have all ended, and its cost."""

from decimal import Decimal
from pathlib import Path

import pytest

from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import Counts
from amplifier_batch.statistics.summary import outcome_of_batch, totals


@pytest.mark.parametrize(
    ("outcomes", "ending"),
    [
        ({"ok": 9}, Ending.OK),
        ({"ok": 9, "budget": 1}, Ending.ERROR),
        ({"ok": 9, "budget": 1, "provider": 2}, Ending.PROVIDER),
        ({"interrupted": 3, "provider": 1}, Ending.ERROR),
        ({"check_failed": 1, "budget": 9}, Ending.CHECK_FAILED),
        ({"unavailable": 3}, Ending.UNAVAILABLE),
        ({"unavailable": 3, "provider": 1}, Ending.PROVIDER),
    ],
)
def test_limits_of_rows_and_signals_to_them_do_not_decide(
    tmp_path: Path, outcomes: dict[str, int], ending: Ending
) -> None:
    counts = Counts()
    counts.outcomes.update(outcomes)
    facts = {"input": "rows.jsonl", "rows": counts.ended}
    batch = BatchFolder.create(tmp_path / "out", facts, "")
    assert outcome_of_batch(batch, counts).ending is ending


@pytest.mark.parametrize(
    ("cost", "priced", "usd"), [("0", 0, None), ("0", 1, None), ("0.5", 1, 0.5), ("0", 2, 0)]
)
def test_a_cost_is_zero_only_if_every_row_has_a_price(
    tmp_path: Path, cost: str, priced: int, usd: float | None
) -> None:
    counts = Counts()
    counts.outcomes["ok"] = 2
    counts.cost, counts.priced = Decimal(cost), priced
    batch = BatchFolder.create(tmp_path / "out", {"input": "rows.jsonl", "rows": 2}, "")
    assert totals(batch, counts, running=False)["cost"]["usd"] == usd
