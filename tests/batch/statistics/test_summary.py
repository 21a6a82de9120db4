"""The exit code of a batch whose rows have all ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from amplifier_app.base.outcome import Ending
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.progress import Counts
from amplifier_batch.statistics.summary import outcome_of_batch


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
