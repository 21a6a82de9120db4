"""The mode of a session: which calls need no approval if no rule matches. It can change at any time."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from amplifier_support.session_capabilities import MODE

Mode = Literal["ask", "edits", "read-only", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)

MODE_CHANGED = "approval:mode_changed"
"""Event with `mode` and `previous`."""


class ApprovalMode:
    """The mode of a session.

    Args:
        mode: The mode at the start.
        hooks: Where changes are emitted.

    Attributes:
        modes: Every mode.
        configured: The mode at the start.
    """

    modes = MODES

    def __init__(self, mode: Mode, hooks: Any) -> None:
        self._mode: Mode = mode
        self.configured = mode
        self._hooks = hooks

    @property
    def mode(self) -> Mode:
        return self._mode

    async def set(self, mode: str) -> None:
        """Change the mode for the calls decided from now on.

        Raises:
            ValueError: There is no such mode.
        """
        known: Mode | None = next((one for one in MODES if one == mode), None)
        if known is None:
            raise ValueError(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
        previous, self._mode = self._mode, known
        if previous != mode:
            await self._hooks.emit(MODE_CHANGED, {"mode": mode, "previous": previous})

    async def cycle(self) -> str:
        """Change to the next mode and return it; never to `auto`, which must not be set by accident."""
        usual = [mode for mode in MODES if mode != "auto"]
        at = usual.index(self._mode) if self._mode in usual else -1
        await self.set(usual[(at + 1) % len(usual)])
        return self._mode


def mode_of(coordinator: Any, configured: Mode) -> ApprovalMode:
    """The mode of the session, or of its parent session; registered if it is new.

    A sub-agent follows its parent, but one that its own config makes read-only stays so.
    """
    inherited = cast("ApprovalMode | None", MODE.of(coordinator))
    if inherited is not None and configured in ("ask", "edits", "auto", inherited.configured):
        return inherited
    own = ApprovalMode(configured, coordinator.hooks)
    MODE.register(coordinator, own)
    return own
