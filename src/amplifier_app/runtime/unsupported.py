"""What a plan asks of its orchestrator that this one does not do: no silent matter."""

from __future__ import annotations

from typing import Any

NO_BUDGETS = "the orchestrator keeps no budgets: session.budget of the plan has no effect"
NO_FALLBACKS = "the orchestrator knows no fallbacks: those of the plan have no effect"


async def unkept(coordinator: Any, *, counts: bool) -> list[str]:
    """Sentences on what has no effect, for a person.

    Args:
        coordinator: Of a session whose modules are mounted.
        counts: Whether its orchestrator counts what is used.
    """
    session: dict[str, Any] = coordinator.config["session"]
    remarks: list[str] = []
    limits = session.get("budget") or {}
    if not counts and any(limit is not None for limit in limits.values()):
        remarks.append(NO_BUDGETS)
    if session.get("fallbacks"):
        announced = await coordinator.collect_contributions("observability.events")
        # Contributors are foreign code; what is no list of names announces nothing.
        lists = [events for events in announced if isinstance(events, (list, tuple, set))]
        if not any("provider:fallback" in events for events in lists):
            remarks.append(NO_FALLBACKS)
    return remarks
