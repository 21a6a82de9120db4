"""Providers to use while another is unavailable: `fallbacks` of the plan.

Asks hooks to raise a limit of the session's budget, or of the turn, when it is reached.

`budget:reached` carries `limit`, `allowed`, `spent` and `inherited`, whether the limit is one of a
session above. A hook that replaces `allowed` by a larger number raises the limit, and the turn continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from amplifier_core.llm_errors import (
    LLMError,
    NotFoundError,
    ProviderUnavailableError,
    RateLimitError,
)
from amplifier_modules._shared.loop.budget import Budget, BudgetReached, Reached, Ticket
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_support.fields import to_mapping

PROVIDER_FALLBACK = "provider:fallback"
_PREFIX = "provider-"


class Fallbacks:
    """The fallback providers of one turn.

    A provider that was unavailable is not asked again in the turn: each attempt costs all its retries.

    Args:
        names: Names of providers in the order in which they are tried.
        providers: The mounted providers by name. Other names are skipped: their conditions may
            have excluded them.
    """

    def __init__(self, names: Sequence[str], providers: Mapping[str, Any]) -> None:
        mounted = (name if name in providers else name.removeprefix(_PREFIX) for name in names)
        self._chain = [name for name in dict.fromkeys(mounted) if name in providers]
        self._away: dict[str, Exception] = {}

    def substitute(self, name: str) -> str:
        """The provider to use for `name`: itself, unless it is known to be unavailable."""
        return self._next() or name if name in self._away else name

    def reason(self, name: str) -> Exception | None:
        """The error that made a provider unavailable; None if it is not known to be."""
        return self._away.get(name)

    def after(self, name: str, error: Exception) -> str | None:
        """The provider to use after `name` failed; None if the error ends the turn."""
        if not self._chain or not is_unavailable(error):
            return None
        self._away[name] = error
        return self._next()

    def _next(self) -> str | None:
        return next((name for name in self._chain if name not in self._away), None)


def is_unavailable(error: Exception) -> bool:
    """Return True if another provider may answer the same request.

    True if the network or the service is down, overloaded or slow, if a rate limit or the credit is
    exhausted, or if the model is missing. False if the request, the key or the settings are wrong.
    """
    if not isinstance(error, LLMError):
        return False
    if error.retryable or isinstance(error, (RateLimitError, NotFoundError)):
        return True
    status = error.status_code or 0
    # A service may report that a retry is pointless.
    return isinstance(error, ProviderUnavailableError) and status >= 500


def find_fallbacks(coordinator: Any) -> list[str]:
    """`session.fallbacks` of a session's plan."""
    config = to_mapping(getattr(coordinator, "config", None))
    named = to_mapping(config.get("session")).get("fallbacks")
    if isinstance(named, str):
        return [named]
    items = cast("list[Any]", named) if isinstance(named, list) else []
    return [name for name in items if isinstance(name, str)]


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
        """Return True if a limit of the budget that was reached has been raised."""
        if reached.limit not in RAISABLE or reached.spent is None:
            return False
        owner = self._budget.find_owner(reached)
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
        denied, final = await interruptible(
            self._channel.emit_and_apply(BUDGET_REACHED, data), self._token
        )
        allowed = final.get("allowed")
        if denied is not None or isinstance(allowed, bool) or reached.spent is None:
            return None
        return allowed if isinstance(allowed, (int, float)) and allowed > reached.spent else None
