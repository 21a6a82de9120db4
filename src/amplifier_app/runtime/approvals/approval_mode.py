"""The mode of a session: which tool calls need no approval, which ask and which are denied.

A module provides it in the capability `approval.mode`. The app reads and sets it through this file only.
"""

from __future__ import annotations

from typing import Any

from amplifier_app.base.errors import ConfigError
from amplifier_app.runtime.approvals.requests import ADD_MODULE, Approvals
from amplifier_support.session_capabilities import MODE, ModeControl

NO_MODES = "no module of this session has approval modes"
NO_MODES_HINT = ADD_MODULE

MEANINGS = {
    "ask": "reading needs no approval, edits and commands ask",
    "edits": "edits in the working directory need no approval either",
    "read-only": "nothing may be changed",
    "auto": "nothing needs approval except what is known to be dangerous; rules can still deny",
}
"""What each mode means, for users."""


def mode_control(coordinator: Any) -> ModeControl | None:
    """The control of the session's mode; None if no module has modes."""
    return MODE.of(coordinator)


def current_mode(coordinator: Any) -> str | None:
    """The mode of the session; None if no module has modes."""
    control = mode_control(coordinator)
    return None if control is None else control.mode


def policy_other_than_asking(coordinator: Any) -> str | None:
    """How approval requests of the session are answered without asking; None if the user is asked."""
    system = coordinator.approval_system
    return system.policy if isinstance(system, Approvals) and system.policy != "ask" else None


async def set_mode(coordinator: Any, mode: str) -> None:
    """Change the mode of the session.

    Raises:
        ConfigError: No module has modes, or there is no such mode.
    """
    control = mode_control(coordinator)
    if control is None:
        raise ConfigError(f"cannot set the mode to '{mode}': {NO_MODES}", hint=NO_MODES_HINT)
    try:
        await control.set(mode)
    except ValueError as error:
        raise ConfigError(str(error), is_usage=True) from None
