"""Random trees of sessions on one budget: counts add up, limits hold, no request waits forever."""

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules._shared.loop.budget import Budget, BudgetConfig, BudgetReached, Spent, Ticket

LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_steps": st.integers(1, 8),
        "max_tool_calls": st.integers(1, 8),
        "max_tokens": st.integers(1, 500),
        "max_cost": st.decimals(Decimal("0.01"), Decimal(2), places=2),
    },
)
USAGE = st.fixed_dictionaries(
    {"total_tokens": st.integers(1, 100), "cost_usd": st.decimals(0, 1, places=2).map(str)}
)
STEP = st.tuples(
    st.sampled_from(["ask", "answer", "fail", "tools"]), st.integers(0, 3), USAGE, st.integers(1, 4)
)


@given(st.lists(LIMITS, min_size=4, max_size=4), st.lists(STEP, max_size=40))
def test_a_family_of_sessions(limits: list[dict[str, Any]], steps: list[Any]) -> None:
    family = _family(limits)
    under_way: list[tuple[int, Ticket]] = []
    own = [Spent() for _ in family]
    for what, who, usage, wanted in steps:
        if what == "ask":
            ticket = _asked(family[who])
            if ticket is not None:
                under_way.append((who, ticket))
        elif what == "tools":
            own[who].tool_calls += family[who].take_tool_calls(wanted)
        elif under_way:
            asker, ticket = under_way.pop(who % len(under_way))
            ticket.settle(usage if what == "answer" else None)
            if what == "answer":
                own[asker].steps += 1
                own[asker].add(usage)
        _limits_hold(family)
    for _, ticket in under_way:
        ticket.settle()

    for level, budget in enumerate(family):
        inside = [own[level], *(own[child] for child in _descendants(level))]
        spent = budget.as_dict()
        assert spent["steps"] == sum(one.steps for one in inside)
        assert spent["tool_calls"] == sum(one.tool_calls for one in inside)
        assert spent["tokens"] == sum(one.tokens for one in inside)
        assert Decimal(spent["cost_usd"]) == sum(one.cost for one in inside)
        assert Spent.read(spent).as_dict() == spent
        if budget.reached() is None:
            ticket = budget.admit()
            assert ticket is not None, "nothing is under way, so there is nothing to wait for"
            ticket.settle()


def _family(limits: list[dict[str, Any]]) -> list[Budget]:
    """A session, two sub-agents of it, and one of the second's."""
    configs = [BudgetConfig(**given) for given in limits]
    root = Budget(configs[0])
    first, second = (Budget(config, parent=root) for config in configs[1:3])
    return [root, first, second, Budget(configs[3], parent=second)]


def _descendants(level: int) -> list[int]:
    return {0: [1, 2, 3], 1: [], 2: [3], 3: []}[level]


def _asked(budget: Budget) -> Ticket | None:
    try:
        return budget.admit()
    except BudgetReached:
        return None


def _limits_hold(family: list[Budget]) -> None:
    for budget in family:
        steps, calls = budget.limits.max_steps, budget.limits.max_tool_calls
        assert steps is None or budget.spent.steps <= steps
        assert calls is None or budget.spent.tool_calls <= calls
