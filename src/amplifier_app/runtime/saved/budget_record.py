"""The budget a session has used, saved with it.

The orchestrator counts, in the capability `session.budget`: an object with `as_dict()`, `is_limited`
and `listen(function)`. A resumed session finds its earlier usage in `session.spent`.
"""

from __future__ import annotations

from typing import Any

from amplifier_app.runtime.saved.session_record import SessionRecord
from amplifier_core.session_capabilities import BUDGET, SPENT, SessionBudget


class BudgetRecord:
    """The budget of one session. Create it before the modules are mounted.

    Args:
        coordinator: The coordinator of the session.
        record: Saves the session; None if it is not saved.
    """

    def __init__(self, coordinator: Any, record: SessionRecord | None) -> None:
        self._coordinator = coordinator
        self._record = record
        # The budget of the parent session, which saves it.
        self._inherited = BUDGET.of(coordinator)
        self._budget: SessionBudget | None = None
        self._planned: dict[str, float] = {}
        self._saved_cost: Any = None
        self._before: Any = None if record is None else record.saved.metadata.get("spent")
        if record is not None:
            SPENT.register(coordinator, self._before)

    @property
    def counts(self) -> bool:
        """Whether a mounted module counts what this session uses."""
        budget = BUDGET.of(self._coordinator)
        return budget is not self._inherited and hasattr(budget, "as_dict")

    def watch(self) -> None:
        """Save usage as it grows, so that a crash does not lose it. Call this after mounting."""
        budget, record = BUDGET.of(self._coordinator), self._record
        if budget is None or not self.counts:
            return
        self._budget = budget
        self._planned = dict(getattr(budget, "allowed", {}))
        # The ledger of a batch counts what a row has cost, also before its worker was killed.
        is_row = record is not None and "row" in record.saved.metadata
        if record is not None and (budget.is_limited or is_row):
            budget.listen(lambda: self._save(budget, record))

    def _save(self, budget: SessionBudget, record: SessionRecord) -> None:
        spent = budget.as_dict()
        if budget.is_limited or spent.get("cost_usd") != self._saved_cost:
            record.save_spent(spent, self.raised)
            self._saved_cost = spent.get("cost_usd")

    @property
    def limits(self) -> dict[str, float]:
        """The limits now, by name."""
        return dict(getattr(self._budget, "allowed", {}))

    @property
    def raised(self) -> dict[str, float]:
        """The limits raised since the session was opened."""
        return {name: most for name, most in self.limits.items() if self._planned.get(name) != most}

    def as_dict(self) -> dict[str, Any] | None:
        """Return the usage so far, or the saved usage if the orchestrator does not count."""
        return self._before if self._budget is None else self._budget.as_dict()
