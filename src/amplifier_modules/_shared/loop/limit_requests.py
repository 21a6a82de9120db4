"""Asks hooks to raise a limit of the session's budget, or of the turn, when it is reached.

`budget:reached` carries `limit`, `allowed`, `spent` and `inherited`, whether the limit is one of a
session above. A hook that replaces `allowed` by a larger number raises the limit, and the turn continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amplifier_modules._shared.loop.budget import Budget, BudgetReached, Ticket
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.loop.limits import Reached

BUDGET_REACHED = "budget:reached"

RAISABLE = ("max_steps", "max_tokens", "max_cost")
"""Limits that can be raised while a turn waits."""


class LimitRequests:
    """The requests of one turn to raise limits.

    Args:
        budget: The session's budget.
        channel: The turn's hooks.
        token: The session's cancellation token, or None.
    """

    def __init__(self, budget: Budget, channel: Channel, token: Any) -> None:
        self._budget = budget
        self._channel = channel
        self._token = token

    async def admit(self, ids: Mapping[str, Any]) -> Ticket:
        """Admit a request, once the budget has room for it.

        Raises:
            BudgetReached: The budget is exhausted, and no hook raised the limit.
            Interrupted: The turn was stopped meanwhile.
        """
        while True:
            try:
                ticket = self._budget.admit()
            except BudgetReached as stop:
                if not await self.request_raise(stop.reached, ids):
                    raise
                continue
            if ticket is not None:
                return ticket
            await interruptible(self._budget.wait_for_settlement(), self._token)

    async def check(self, ticket: Ticket, ids: Mapping[str, Any]) -> None:
        """Check that an admitted request is still allowed; see `Ticket.check`."""
        while True:
            try:
                return ticket.check()
            except BudgetReached as stop:
                if not await self.request_raise(stop.reached, ids):
                    raise

    async def request_raise(self, reached: Reached, ids: Mapping[str, Any]) -> bool:
        """Whether a limit of the budget that was reached has been raised."""
        if reached.limit not in RAISABLE or reached.spent is None:
            return False
        owner = self._budget.owner_of(reached)
        # Sub-agents that reach a common limit at the same time ask once.
        async with owner.asking:
            if not owner.has_reached(reached.limit):
                return True
            if reached.limit in owner.refused:
                return False
            allowed = await self.more(reached, ids, inherited=owner is not self._budget)
            if allowed is None:
                owner.refused.add(reached.limit)
                return False
            owner.raise_limit(reached.limit, allowed)
            return True

    async def more(
        self, reached: Reached, ids: Mapping[str, Any], *, inherited: bool = False
    ) -> int | float | None:
        """The larger limit that a hook sets, if one does."""
        if not self._channel.has_listeners(BUDGET_REACHED):
            return None
        data = {**reached._asdict(), "inherited": inherited, **ids}
        denied, final = await interruptible(self._channel.ask(BUDGET_REACHED, data), self._token)
        allowed = final.get("allowed")
        if denied is not None or isinstance(allowed, bool) or reached.spent is None:
            return None
        return allowed if isinstance(allowed, (int, float)) and allowed > reached.spent else None
