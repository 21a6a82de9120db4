"""The budget a session has used, saved with it.

The orchestrator counts, in the capability `session.budget`: an object with `as_dict()`, `is_limited`
and `listen(function)`. What one of another author does not count is added at the end of each turn. A
resumed session finds its earlier usage in `session.spent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_app.runtime.saved.session_record import SessionRecord
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_support.fields import mapping_of
from amplifier_support.session_capabilities import BUDGET, SPENT, SessionBudget
from amplifier_support.usage import dollars


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
    def is_missing(self) -> bool:
        """Whether usage has to be counted as it grows, and no mounted module does so."""
        if self._is_counted:
            return False
        limits = mapping_of(mapping_of(self._coordinator.config["session"]).get("budget")).values()
        # A session above counts what this one uses, too.
        return self._is_row or self._inherited is not None or any(one is not None for one in limits)

    @property
    def _is_counted(self) -> bool:
        budget = BUDGET.of(self._coordinator)
        return budget is not self._inherited and hasattr(budget, "as_dict")

    @property
    def _is_row(self) -> bool:
        return self._record is not None and "row" in self._record.saved.metadata

    def watch(self) -> None:
        """Save usage as it grows, so that a crash does not lose it. Call this after mounting."""
        budget, record = BUDGET.of(self._coordinator), self._record
        if budget is None or not self._is_counted:
            return
        self._budget = budget
        self._planned = dict(getattr(budget, "allowed", {}))
        # The ledger of a batch counts what a row has cost, also before its worker was killed.
        if record is not None and (budget.is_limited or self._is_row):
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

    def add(self, turn: TurnResult) -> None:
        """Add a turn that no module has counted: limits of a later run apply to it, too."""
        if self._budget is not None:
            return
        before = mapping_of(self._before)
        steps = turn.steps + sum(agent.steps for agent in turn.sub_sessions)
        tokens = turn.usage.get("total_tokens", 0)
        used = {
            "steps": steps,
            "tool_calls": len(turn.tools),
            "tokens": tokens,
            "unpriced": steps if turn.cost is None else 0,
            "unmeasured": 0 if tokens else steps,
        }
        cost = (dollars(before.get("cost_usd")) or 0) + (turn.cost or 0)
        sums = {name: _count(before, name) + amount for name, amount in used.items()}
        self._before = {**before, **sums, "cost_usd": str(cost)}

    @property
    def is_live(self) -> bool:
        """Whether `as_dict` includes a running turn."""
        return self._budget is not None

    def as_dict(self) -> dict[str, Any] | None:
        """Return the usage so far; without a turn in progress if no module counts it."""
        return self._before if self._budget is None else self._budget.as_dict()


def _count(before: Mapping[str, Any], name: str) -> int:
    # The file may have been edited.
    value = before.get(name)
    return value if isinstance(value, int) else 0
