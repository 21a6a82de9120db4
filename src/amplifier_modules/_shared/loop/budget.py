"""The budget of a session, shared with the sessions of its sub-agents.

`session.budget` of the plan sets the limits. Usage is counted over all turns, including those before
the session was resumed. The object is the capability `session.budget`. If a session finds the budget
of its parent session there, it nests its own budget in it, and every call counts in both.

A request is admitted while no limit is reached, so at most one request exceeds a limit. When several
sub-agents make requests at once, a request that may exhaust the budget waits for those in progress.
With a limit on tokens or dollars, every request also waits while the first request of another session
is in progress, because its size is still unknown.

When a limit of the session, or of the turn, is reached, hooks may raise it. The event `budget:reached`
carries `limit`, `allowed`, `spent` and `inherited`, whether the limit is one of a session above. A hook
that replaces `allowed` by a larger number raises the limit, and the turn continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from pydantic import Field

from amplifier_core.cancellation import CancellationToken
from amplifier_modules._shared.loop.channel import Channel
from amplifier_modules._shared.loop.interrupt import interruptible
from amplifier_modules._shared.module.config import ModuleConfig, parse_config
from amplifier_support.delegate import Delegate
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import has_no_price
from amplifier_support.session_capabilities import BUDGET, SPENT
from amplifier_support.usage import amount_text, dollars, total_tokens


class Spent:
    """Amounts used so far.

    Attributes:
        steps: Model calls.
        tool_calls: Tool calls.
        tokens: Tokens of all model calls.
        cost: US dollars of the model calls whose price is known.
        unpriced: Model calls whose price is not known.
        unmeasured: Model calls without reported tokens.
        seconds: Seconds of completed turns.
    """

    COUNTS = ("steps", "tool_calls", "tokens", "unpriced", "unmeasured")

    __slots__ = ("cost", "seconds", *COUNTS)

    def __init__(self) -> None:
        self.steps = self.tool_calls = self.tokens = self.unpriced = self.unmeasured = 0
        self.cost = Decimal(0)
        self.seconds = 0.0

    @classmethod
    def read(cls, value: object) -> Spent:
        """Create from the result of `as_dict`; invalid values count as 0."""
        spent, data = cls(), dict(to_mapping(value))
        # Sessions saved by earlier versions.
        data.setdefault("steps", data.get("turns"))
        for name in cls.COUNTS:
            if isinstance(data.get(name), int):
                setattr(spent, name, max(0, data[name]))
        if isinstance(data.get("seconds"), (int, float)):
            spent.seconds = max(0.0, float(data["seconds"]))
        spent.cost = dollars(data.get("cost_usd")) or Decimal(0)
        return spent

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `cost_usd` as a decimal string."""
        counts = {name: getattr(self, name) for name in self.COUNTS}
        return {**counts, "cost_usd": str(self.cost), "seconds": round(self.seconds, 3)}

    def add(self, usage: Mapping[str, Any]) -> tuple[int, Decimal]:
        """Add the usage of a model call; returns its tokens and dollars, 0 if unknown."""
        tokens = total_tokens(usage) or 0
        # Servers that do not count report zeros; every request uses tokens.
        self.unmeasured += not tokens
        cost = dollars(usage.get("cost_usd"))
        self.unpriced += cost is None
        self.tokens += tokens
        self.cost += cost or Decimal(0)
        return tokens, cost or Decimal(0)

    def grow_to(self, amounts: tuple[int, Decimal]) -> None:
        """Raise tokens and dollars to at least these amounts."""
        self.tokens = max(self.tokens, amounts[0])
        self.cost = max(self.cost, amounts[1])


class BudgetConfig(ModuleConfig):
    """Limits of a session, counted over all its turns; unset means unlimited.

    Attributes:
        max_steps: Model calls.
        max_tool_calls: Tool calls.
        max_tokens: Input and output tokens of all model calls.
        max_cost: US dollars of all model calls.
        max_seconds: Total duration of the turns in seconds.
    """

    max_steps: int | None = Field(default=None, gt=0)
    max_tool_calls: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    max_cost: Decimal | None = Field(default=None, gt=0)
    max_seconds: float | None = Field(default=None, gt=0)


class Reached(NamedTuple):
    """A limit that is reached.

    Attributes:
        limit: Its name in the plan.
        allowed: How much it allows.
        spent: How much was used; None if a provider does not report it.
    """

    limit: str
    allowed: int | float
    spent: int | float | None

    def __str__(self) -> str:
        unit = _UNITS[self.limit]
        if self.spent is None:
            return f"Budget: cannot enforce {self.limit}: the {unit} of a model call are unknown"
        return f"Budget reached: {amount_text(self.spent)} of {amount_text(self.allowed)} {unit}"


_UNITS = {
    "max_iterations": "model calls for one prompt",
    "max_steps": "model calls",
    "max_tool_calls": "tool calls",
    "max_tokens": "tokens",
    "max_cost": "US dollars",
    "max_seconds": "seconds",
}


def plain(amount: Any) -> int | float:
    """An amount as plain data; dollars rounded to a millionth."""
    return amount if isinstance(amount, int) else round(float(amount), 6)


class BudgetReached(Exception):
    """No further request is allowed.

    Attributes:
        details: The limit, as data; with the model whose price is unknown, if that is the reason.
    """

    def __init__(self, reached: Reached, unpriced: str = "") -> None:
        super().__init__(str(reached))
        self.reached = reached
        self.details = reached._asdict() | ({"model": unpriced} if unpriced else {})


class Budget:
    """The usage and the limits of a session.

    Args:
        limits: Its limits; None for none.
        spent: Earlier usage.
        parent: The budget of the session that started this one.

    Attributes:
        spent: Usage so far, without the time of turns in progress.
        asking: Held while hooks are asked to raise one of its limits.
        refused: The limits that hooks did not raise in this turn.
    """

    def __init__(
        self,
        limits: BudgetConfig | None = None,
        spent: Spent | None = None,
        parent: Budget | None = None,
    ) -> None:
        self.limits = limits or BudgetConfig.model_construct()
        self.spent = spent or Spent()
        self._planned = self.limits
        self.asking = asyncio.Lock()
        self.refused: set[str] = set()
        self._parent = parent
        self._listeners: list[Callable[[], None]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._under_way = 0
        self._first: list[Budget] = []
        self._has_asked = False
        self._largest = Spent()
        self._turns = 0
        self._since = 0.0

    def reached(self, *, turns: bool = True, tools: bool = False) -> Reached | None:
        """The limit that allows no further request.

        Args:
            turns: Whether to check model calls; False for a call that is already counted.
            tools: Whether to check tool calls too. False within a turn: the model may still
                answer without one.
        """
        limits = (limit for level in self._levels() for limit in level._own_limits(turns, tools))
        return next(limits, None)

    def find_owner(self, reached: Reached) -> Budget:
        """The budget whose limit is reached: this one or a parent."""
        return next(level for level in self._levels() if level.has_reached(reached.limit))

    def has_reached(self, limit: str) -> bool:
        """Return True if a limit of this budget itself is reached."""
        return any(reached.limit == limit for reached in self._own_limits(True, True))

    def without_inherited(self, limits: BudgetConfig) -> BudgetConfig:
        """The limits of a sub-session without those it has only because its plan extends this one's.

        They limit it already, here, and may be raised.
        """
        inherited = {
            name
            for level in self._levels()
            for name, limit in level._planned
            if limit is not None and limit == getattr(limits, name)
        }
        return limits.model_copy(update=dict.fromkeys(inherited))

    def raise_limit(self, limit: str, allowed: int | float) -> None:
        """Set a higher limit for the rest of the session."""
        amount = Decimal(str(allowed)) if limit == "max_cost" else int(allowed)
        self.limits = self.limits.model_copy(update={limit: amount})
        self._notify_listeners()

    @property
    def allowed(self) -> dict[str, int | float]:
        """Its limits now, by name."""
        return {name: plain(limit) for name, limit in self.limits if limit is not None}

    def time_is_up(self) -> bool:
        """Return True if the time limit is reached, so that the turn must stop at once."""
        return any(
            level.limits.max_seconds is not None and level.seconds() >= level.limits.max_seconds
            for level in self._levels()
        )

    def seconds(self) -> float:
        """Seconds of turns, including those in progress; parallel turns count once."""
        running = time.monotonic() - self._since if self._turns else 0.0
        return self.spent.seconds + running

    @contextmanager
    def clock(self) -> Generator[None]:
        """Count the time of a turn."""
        for level in self._levels():
            level._turns += 1
            if level._turns == 1:
                level._since = time.monotonic()
                level.refused.clear()
        try:
            yield
        finally:
            for level in self._levels():
                if level._turns == 1:
                    level.spent.seconds = level.seconds()
                level._turns -= 1

    def wait_for_settlement(self) -> Coroutine[Any, Any, None]:
        """Wait until one of the requests now in progress has ended."""
        # Registered at the call, not when it is awaited: by then the request may have ended.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for level in self._levels():
            level._waiting.append(future)

        async def wait() -> None:
            await future

        return wait()

    def admit(self) -> Ticket | None:
        """Count and admit a request; None if one in progress must end first.

        Raises:
            BudgetReached: No request is allowed.
        """
        if (reached := self.reached()) is not None:
            raise BudgetReached(reached)
        if any(level._is_crowded(self) for level in self._levels()):
            return None
        is_first = not self._has_asked
        for level in self._levels():
            level._under_way += 1
            level.spent.steps += 1
            if is_first:
                level._first.append(self)
        return Ticket(self, is_first)

    def is_counting(self) -> bool:
        """Return True if this is part of a request that it counts already; see `Ticket.counting`."""
        counting = _counting.get()
        return counting is not None and any(level is self for level in counting._levels())

    def take_tool_calls(self, count: int) -> int:
        """Count the tool calls that are about to run; return how many of `count` may run."""
        left = (
            max(0, most - level.spent.tool_calls)
            for level in self._levels()
            if (most := level.limits.max_tool_calls) is not None
        )
        granted = min(count, *left, count)
        for level in self._levels():
            level.spent.tool_calls += granted
        self._notify_listeners()
        return granted

    def as_dict(self) -> dict[str, Any]:
        """Usage so far as plain data."""
        return {**self.spent.as_dict(), "seconds": round(self.seconds(), 3)}

    def stats(self) -> dict[str, Any]:
        """Usage so far, for `session:end`; the cost is None if part of it is unknown."""
        spent = self.spent
        return {
            "model_calls": spent.steps,
            "tool_calls": spent.tool_calls,
            "tokens": spent.tokens,
            "cost_usd": None if spent.unpriced else str(spent.cost),
        }

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` on every change of usage."""
        self._listeners.append(listener)

    @property
    def is_limited(self) -> bool:
        """True if this budget or a parent has a limit."""
        return any(limit is not None for level in self._levels() for _, limit in level.limits)

    @property
    def cost_limit(self) -> Decimal | None:
        """A limit on the cost, of this budget or a parent."""
        return next((cost for level in self._levels() if (cost := level.limits.max_cost)), None)

    # -- inside --------------------------------------------------------------------------------

    def _levels(self) -> Iterator[Budget]:
        """This budget and its parents."""
        level: Budget | None = self
        while level is not None:
            yield level
            level = level._parent

    def _own_limits(self, turns: bool, tools: bool) -> Iterator[Reached]:
        limits, spent = self.limits, self.spent
        cost = None if spent.unpriced else spent.cost
        tokens = None if spent.unmeasured else spent.tokens
        used: tuple[tuple[str, Any, Any], ...] = (
            ("max_steps", limits.max_steps if turns else None, spent.steps),
            ("max_tool_calls", limits.max_tool_calls if tools else None, spent.tool_calls),
            ("max_tokens", limits.max_tokens, tokens),
            ("max_cost", limits.max_cost, cost),
            ("max_seconds", limits.max_seconds, self.seconds()),
        )
        for name, allowed, amount in used:
            if allowed is not None and (amount is None or amount >= allowed):
                yield Reached(name, plain(allowed), None if amount is None else plain(amount))

    def _is_crowded(self, asking: Budget) -> bool:
        """Return True if the requests in progress may already exhaust the budget."""
        limits, spent, largest = self.limits, self.spent, self._largest
        tokens, cost = limits.max_tokens, limits.max_cost
        if not self._under_way or (tokens is None and cost is None):
            return False
        if any(first is not asking for first in self._first):
            return True
        coming_tokens = spent.tokens + self._under_way * largest.tokens
        coming_cost = spent.cost + self._under_way * largest.cost
        return (tokens is not None and coming_tokens >= tokens) or (
            cost is not None and coming_cost >= cost
        )

    def settle(self, usage: Mapping[str, Any] | None, is_first: bool) -> None:
        """Count the usage of a request; None for one that was not answered."""
        self._has_asked = self._has_asked or usage is not None
        for level in self._levels():
            level._under_way -= 1
            if is_first:
                level._first.remove(self)
            if usage is None:
                level.spent.steps -= 1
            else:
                level._largest.grow_to(level.spent.add(usage))
            waiting, level._waiting = level._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        for level in self._levels():
            for listener in level._listeners:
                listener()


class Ticket:
    """Permission for one request; must be settled whether or not the request succeeds."""

    def __init__(self, budget: Budget, is_first: bool) -> None:
        self._budget: Budget | None = budget
        self._is_first = is_first

    @contextmanager
    def counting(self) -> Generator[None]:
        """Make the request in this block; a provider that counts by itself does not count it again."""
        token = _counting.set(self._budget)
        try:
            yield
        finally:
            _counting.reset(token)

    def settle(self, usage: Mapping[str, Any] | None = None) -> None:
        """Count the usage of the request, None if it was not answered; repeated calls do nothing."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.settle(usage, self._is_first)


_counting: ContextVar[Budget | None] = ContextVar("amplifier_counting_budget", default=None)


def open_budget(coordinator: Any) -> Budget:
    """Create a session's budget from its plan and register it.

    Raises:
        ValueError: `session.budget` of the plan is not valid.
    """
    session = to_mapping(to_mapping(getattr(coordinator, "config", None)).get("session"))
    limits = parse_config(BudgetConfig, session.get("budget"), "session.budget")
    above = BUDGET.of(coordinator)
    parent = above if isinstance(above, Budget) else None
    if parent is not None:
        limits = parent.without_inherited(limits)
    budget = Budget(limits, Spent.read(SPENT.of(coordinator)), parent)
    BUDGET.register(coordinator, budget)
    return budget


def find_budget(coordinator: Any) -> Budget:
    """The budget of a session; one without limits if there is no session."""
    if not callable(getattr(coordinator, "get_capability", None)):
        return Budget()
    budget = BUDGET.of(coordinator)
    return budget if isinstance(budget, Budget) else open_budget(coordinator)


class StopSignal(Delegate):
    """A cancellation token that also turns immediate when the budget's time limit is reached.

    Args:
        token: The session's cancellation token, or None.
        budget: The session's budget.
    """

    _budget: Budget

    def __init__(self, token: Any, budget: Budget) -> None:
        super().__init__(token or CancellationToken(), _budget=budget)

    @property
    def is_requested(self) -> bool:
        """True if a stop was requested, at once or after the current step."""
        return self._inner.is_cancelled

    @property
    def is_cancelled(self) -> bool:
        return self.is_requested or self._budget.time_is_up()

    @property
    def is_immediate(self) -> bool:
        return self._inner.is_immediate or self._budget.time_is_up()


BUDGET_REACHED = "budget:reached"

RAISABLE = ("max_steps", "max_tokens", "max_cost")
"""Limits that can be raised while a turn waits."""


class LimitRequests:
    """The requests of one turn to raise limits.

    Args:
        budget: The session's budget.
        channel: The turn's hooks.
        token: The cancellation token of the turn.
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
            await self.require_room(ids)
            ticket = self._budget.admit()
            if ticket is not None:
                return ticket
            await interruptible(self._budget.wait_for_settlement(), self._token)

    def require_price(self, provider: Any, model: str | None) -> None:
        """Check that the cost of a request will be known, if it is limited.

        Raises:
            BudgetReached: The provider does not know the price of the model.
        """
        limit = self._budget.cost_limit
        if limit is not None and has_no_price(provider, model):
            unpriced = (
                f"{model!r} of {provider.name}"
                if model
                else f"the default model of {provider.name}"
            )
            raise BudgetReached(Reached("max_cost", plain(limit), None), unpriced)

    async def require_room(self, ids: Mapping[str, Any], *, turns: bool = True) -> None:
        """Check that a request is allowed; see `find_reached`.

        Raises:
            BudgetReached: A limit is reached, and no hook raised it.
        """
        reached = await self.find_reached(ids, turns=turns)
        if reached is not None:
            raise BudgetReached(reached)

    async def find_reached(
        self, ids: Mapping[str, Any], *, turns: bool = True, tools: bool = False
    ) -> Reached | None:
        """The first limit that is reached and that no hook raises; see `Budget.reached`."""
        while (reached := self._budget.reached(turns=turns, tools=tools)) is not None:
            if not await self._request_raise(reached, ids):
                return reached
        return None

    async def _request_raise(self, reached: Reached, ids: Mapping[str, Any]) -> bool:
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
