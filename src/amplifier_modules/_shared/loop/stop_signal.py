"""Stops a turn on the session's cancellation token or its time limit."""

from __future__ import annotations

from typing import Any

from amplifier_modules._shared.loop.budget import Budget


class StopSignal:
    """A cancellation token that also turns immediate when the budget's time limit is reached.

    Args:
        token: The session's cancellation token, or None.
        budget: The session's budget.
    """

    def __init__(self, token: Any, budget: Budget) -> None:
        self._token = token
        self._budget = budget

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested, at once or after the current step."""
        return self._token is not None and self._token.is_cancelled

    @property
    def is_cancelled(self) -> bool:
        return self.is_requested or self._budget.time_is_up()

    @property
    def is_immediate(self) -> bool:
        asked = self._token is not None and self._token.is_immediate
        return asked or self._budget.time_is_up()

    def register_tool_start(self, call_id: str, name: str) -> None:
        if self._token is not None:
            self._token.register_tool_start(call_id, name)

    def register_tool_complete(self, call_id: str) -> None:
        if self._token is not None:
            self._token.register_tool_complete(call_id)

    async def trigger_callbacks(self) -> None:
        if self._token is not None:
            await self._token.trigger_callbacks()
