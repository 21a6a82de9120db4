"""How a session of the chat is opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amplifier_app.runtime.approvals.approval_mode import current_mode
from amplifier_app.runtime.module_modes import active_module_mode

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_IN_SAVED_PLAN = ("plan", "profile", "sets", "max_steps")
"""Options that are part of the saved plan of a new session."""


def reopening_options(session: OpenSession) -> dict[str, Any] | None:
    """Fields of the request that differ when the session is opened again as it is now.

    Returns:
        None if it has a conversation that is not saved.
    """
    coordinator = session.session.coordinator
    modes = {"mode": current_mode(coordinator), "module_mode": active_module_mode(coordinator)}
    if not session.is_saved:
        return modes if session.recorder.context_tokens is None else None
    options: dict[str, Any] = {} if session.facts.resumed else dict.fromkeys(_IN_SAVED_PLAN)
    # As they are now: the user may have raised a limit or changed a mode.
    options |= {name: session.budget.limits.get(name) for name in ("max_cost", "max_tokens")}
    return {"resume": session.id, **options, **modes}
