"""Delegation: which session started a sub-session, and what it shares with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import (
    ACCEPTED_TOOLS,
    BACKUPS,
    BUDGET,
    DEFERRAL,
    DEPTH,
    MENTIONS,
    MODE,
    PACE_DIR,
    REDACT_EVENT,
    REMEMBERED_APPROVALS,
    SANDBOX,
    SECRET_VARIABLES,
    SPENT,
    Capability,
)

MAX_DEPTH = 5
"""Maximum depth of sub-agents that delegate to sub-agents, regardless of what a tool allows."""

_SHARED: tuple[Capability[Any], ...] = (
    BUDGET,
    SANDBOX,
    PACE_DIR,
    SECRET_VARIABLES,
    REDACT_EVENT,
    REMEMBERED_APPROVALS,
    MODE,
    BACKUPS,
    DEFERRAL,
    MENTIONS,
    ACCEPTED_TOOLS,
)
"""Capabilities a sub-session inherits; its own modules may replace them."""


class Delegation(NamedTuple):
    """The link from a sub-session to its parent.

    Attributes:
        parent_id: The session that delegated the task.
        agent: The agent of the plan that runs it.
        depth: The number of sessions above it.
        coordinator: The parent's, while it waits for the sub-session; None when the user resumes
            the sub-session directly.
        spent: Budget used before, if it is not saved with the sub-session.
    """

    parent_id: str
    agent: str
    depth: int
    coordinator: Any = None
    spent: Any = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Delegation | None:
        """Return the delegation of a saved session; None if it is not a sub-session."""
        parent, agent, depth = (metadata.get(key) for key in ("parent", "agent", "depth"))
        if not isinstance(parent, str) or not isinstance(agent, str):
            return None
        return cls(parent, agent, depth if isinstance(depth, int) else 1)

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata to save with the session."""
        return {"parent": self.parent_id, "agent": self.agent, "depth": self.depth}


def share(delegation: Delegation | None, coordinator: Any) -> None:
    """Register the parent's capabilities on a coordinator, before its modules are mounted."""
    DEPTH.register(coordinator, 0 if delegation is None else delegation.depth)
    if delegation is None or delegation.coordinator is None:
        return
    for capability in _SHARED:
        value = capability.of(delegation.coordinator)
        if value is not None:
            capability.register(coordinator, value)
    if delegation.spent is not None:
        SPENT.register(coordinator, delegation.spent)
