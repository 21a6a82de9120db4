"""What a session has used of its budget, kept with it.

The counting is the orchestrator's, in the capability `session.budget`: an object with `as_dict()`,
`is_limited` and `listen(function)`. What a resumed session used before it finds as `session.spent`.
"""

from __future__ import annotations

from typing import Any

from amplifier_app.runtime.session_record import Keeper


class Spending:
    """The budget of one session.

    To be made before the modules are mounted.

    Args:
        coordinator: The session's.
        keeper: What saves the session; None if nothing does.
    """

    def __init__(self, coordinator: Any, keeper: Keeper | None) -> None:
        self._coordinator = coordinator
        self._keeper = keeper
        # The budget of the session that started this one; that one keeps it.
        self._around = coordinator.get_capability("session.budget")
        self._budget: Any = None
        self._before: Any = None if keeper is None else keeper.saved.metadata.get("spent")
        if keeper is not None:
            coordinator.register_capability("session.spent", self._before)

    def watch(self) -> bool:
        """Keep what is used as it is used, so that a crash gives nothing back.

        To be called once the modules are mounted. Returns whether the orchestrator counts at all.
        """
        budget, keeper = self._coordinator.get_capability("session.budget"), self._keeper
        if budget is self._around or not hasattr(budget, "as_dict"):
            return False
        self._budget = budget
        if keeper is not None and budget.is_limited:
            budget.listen(lambda: keeper.note_spent(budget.as_dict()))
        return True

    def as_dict(self) -> dict[str, Any] | None:
        """What was used so far; what was known of it before if nobody counts."""
        return self._before if self._budget is None else self._budget.as_dict()
