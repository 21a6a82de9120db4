"""Sub-sessions: which session gave them their task, and what that one shares with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_DEPTH = 5
"""How deep sub-agents may give tasks to sub-agents, whatever a tool allows."""

_SHARED = (
    "session.budget",
    "secrets.variables",
    "redaction.event",
    "approval.remembered",
    "backup.session",
)
"""Capabilities a sub-session has from the start; a module of its own may replace them."""


class Lineage(NamedTuple):
    """Where a sub-session comes from.

    Attributes:
        parent_id: The session that gave it its task.
        agent: The agent of the plan that it is.
        depth: How many sessions there are above it.
        coordinator: The parent's, while it waits for the sub-session; None when a person resumes
            the sub-session by itself.
        spent: What it used before, where that is not saved with it.
    """

    parent_id: str
    agent: str
    depth: int
    coordinator: Any = None
    spent: Any = None

    @classmethod
    def noted_in(cls, metadata: Mapping[str, Any]) -> Lineage | None:
        """The lineage of a saved session; None if it is no sub-session."""
        parent, agent, depth = (metadata.get(key) for key in ("parent", "agent", "depth"))
        if not isinstance(parent, str) or not isinstance(agent, str):
            return None
        return cls(parent, agent, depth if isinstance(depth, int) else 1)

    def noted(self) -> dict[str, Any]:
        """What a saved session's metadata says of it."""
        return {"parent": self.parent_id, "agent": self.agent, "depth": self.depth}


def share(lineage: Lineage | None, coordinator: Any) -> None:
    """Give a session's coordinator what it has from its parent, before its modules are mounted."""
    coordinator.register_capability("session.depth", 0 if lineage is None else lineage.depth)
    if lineage is None or lineage.coordinator is None:
        return
    for name in _SHARED:
        value = lineage.coordinator.get_capability(name)
        if value is not None:
            coordinator.register_capability(name, value)
    if lineage.spent is not None:
        coordinator.register_capability("session.spent", lineage.spent)
