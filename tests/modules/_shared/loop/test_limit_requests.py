"""A hook may raise a limit that is reached; the turn continues where it was."""

import asyncio
from typing import Any

import pytest

from amplifier_core.cancellation import CancellationToken
from amplifier_core.models import HookResult
from amplifier_modules._shared.loop.budget import (
    BUDGET_REACHED,
    Budget,
    BudgetConfig,
    LimitRequests,
)
from amplifier_modules._shared.loop.channel import Channel
from tests.modules._shared.loop.rig import Rig, call, calls, echo_tool


def working(rig: Rig, rounds: int, **usage: Any) -> None:
    rig.add_tool(echo_tool())
    asks = [{**calls(call(text=f"{n}")), "usage": usage} for n in range(rounds)]
    rig.replies(*asks, {"text": "done", "usage": usage})


def raising(rig: Rig, *amounts: float) -> list[dict[str, Any]]:
    """Raise the limit by these amounts, one after the other; returns what was asked."""
    asked: list[dict[str, Any]] = []
    left = list(amounts)

    def raise_it(event: str, data: dict[str, Any]) -> HookResult:
        asked.append(dict(data))
        more = left.pop(0) if left else 0
        return HookResult(action="modify", data={**data, "allowed": data["allowed"] + more})

    rig.coordinator.hooks.register(BUDGET_REACHED, raise_it, name="test")
    return asked


@pytest.mark.parametrize(
    ("limits", "more", "asked"),
    [
        ({"max_steps": 2}, [1, 5], [("max_steps", 2, 2), ("max_steps", 3, 3)]),
        ({"max_tokens": 25}, [50], [("max_tokens", 25, 30)]),
        ({"max_cost": 0.05}, [0.2], [("max_cost", 0.05, 0.06)]),
    ],
)
async def test_a_raised_limit_lets_the_turn_continue(
    rig: Rig, limits: dict[str, Any], more: list[float], asked: list[Any]
) -> None:
    rig.plan["session"]["budget"] = limits
    working(rig, 4, input_tokens=6, output_tokens=4, cost_usd="0.02")
    seen = raising(rig, *more)
    assert await rig.run() == "done"
    assert [(one["limit"], one["allowed"], one["spent"]) for one in seen] == asked
    assert not any(one["inherited"] for one in seen)
    assert rig.context.roles() == ["user", *["assistant", "tool"] * 4, "assistant"]
    assert rig.last("orchestrator:complete")["status"] == "success"


async def test_the_limit_of_calls_for_a_prompt_is_raised_for_this_prompt(rig: Rig) -> None:
    rig.config = {"max_iterations": 2}
    working(rig, 3)
    seen = raising(rig, 1, 1)
    assert await rig.run() == "done"
    assert [(one["limit"], one["allowed"]) for one in seen] == [
        ("max_iterations", 2),
        ("max_iterations", 3),
    ]


async def test_a_limit_that_is_not_raised_is_asked_about_once_per_prompt(rig: Rig) -> None:
    rig.plan["session"]["budget"] = {"max_steps": 1}
    working(rig, 5)
    seen = raising(rig)
    assert await rig.run() == "Budget reached: 1 of 1 model calls"
    assert len(seen) == 1
    assert await rig.run() == "Budget reached: 1 of 1 model calls"
    assert len(seen) == 2


async def test_sessions_that_reach_a_common_limit_at_once_ask_once(rig: Rig) -> None:
    parent = Budget(BudgetConfig(max_steps=1))
    parent.spent.steps = 1
    seen = raising(rig, 10)
    channel = Channel(rig.coordinator.hooks, rig.context, None, "test")
    token = CancellationToken()
    children = [LimitRequests(Budget(None, None, parent), channel, token) for _ in range(3)]
    reached = await asyncio.gather(*(child.find_reached({}) for child in children))
    assert (reached, len(seen), seen[0]["inherited"]) == ([None] * 3, 1, True)
    assert parent.allowed == {"max_steps": 11}


async def test_a_limit_whose_usage_is_unknown_cannot_be_raised(rig: Rig) -> None:
    rig.plan["session"]["budget"] = {"max_cost": 1}
    working(rig, 3, input_tokens=6, output_tokens=4)
    seen = raising(rig, 5)
    assert "cannot enforce max_cost" in await rig.run()
    assert seen == []
