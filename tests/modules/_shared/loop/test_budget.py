"""Budgets: what a session may use over all its turns, shared with sub-agents."""

import asyncio
from typing import Any

import pytest

from amplifier_core.message_models import TextBlock
from amplifier_core.models import HookResult, ToolResult
from amplifier_modules import loop_basic
from amplifier_modules._shared.loop.budget import Budget, BudgetConfig, Ticket, find_budget
from tests.modules._shared.loop.rig import FunctionTool, ListContext, Rig, call, calls, echo_tool


def limited(rig: Rig, **limits: Any) -> Rig:
    rig.plan["session"]["budget"] = limits
    return rig


def working(rig: Rig, rounds: int = 20, **usage: Any) -> FunctionTool:
    """A model that calls a tool again and again, each time differently."""
    tool = rig.add_tool(echo_tool())
    asks = [{**calls(call(text=f"{n}")), "usage": usage} for n in range(rounds)]
    rig.replies(*asks)
    return tool


def ending(rig: Rig) -> tuple[Any, ...]:
    done = rig.last("orchestrator:complete")
    return done["status"], done.get("reason"), done.get("budget")


def budget(rig: Rig) -> Budget:
    return find_budget(rig.coordinator)


async def test_without_limits_nothing_is_limited_but_everything_is_counted(rig: Rig) -> None:
    rig.add_tool(echo_tool())
    usage = {"input_tokens": 10, "output_tokens": 5, "cost_usd": "0.25"}
    rig.replies({**calls(call(text="a"), call(text="b")), "usage": usage}, "done")

    assert await rig.run() == "done"
    spent = budget(rig).as_dict()
    assert (spent["steps"], spent["tool_calls"]) == (2, 2)
    assert spent["tokens"] >= 15
    assert spent["cost_usd"] == "0.25"
    assert spent["unpriced"] == 1
    assert not budget(rig).is_limited
    assert budget(rig).stats() == {
        "model_calls": 2,
        "tool_calls": 2,
        "tokens": spent["tokens"],
        "cost_usd": None,
    }


async def test_model_calls(rig: Rig) -> None:
    tool = working(limited(rig, max_steps=3))

    assert await rig.run() == "Budget reached: 3 of 3 model calls"
    assert ending(rig) == ("incomplete", "budget", {"limit": "max_steps", "allowed": 3, "spent": 3})
    assert len(rig.of("provider:request")) == 3
    assert len(tool.inputs) == 3
    assert rig.context.roles() == ["user", *["assistant", "tool"] * 3]


async def test_they_count_over_all_turns_of_the_session(rig: Rig) -> None:
    limited(rig, max_steps=3)
    rig.replies("one", "two", "three", "four")

    assert [await rig.run() for _ in range(3)] == ["one", "two", "three"]
    before = list(rig.context.messages)
    assert await rig.run() == "Budget reached: 3 of 3 model calls"
    assert len(rig.of("provider:request")) == 3
    assert rig.context.messages == before, "a prompt without an answer is not kept"


async def test_tokens_go_over_by_one_request_at_most(rig: Rig) -> None:
    working(limited(rig, max_tokens=100), input_tokens=30, output_tokens=10)

    assert await rig.run() == "Budget reached: 120 of 100 tokens"
    assert len(rig.of("provider:request")) == 3


async def test_a_whole_answer_is_a_success_though_it_uses_the_last_of_the_budget(rig: Rig) -> None:
    limited(rig, max_tokens=100)
    rig.replies({"text": "long", "usage": {"input_tokens": 90, "output_tokens": 90}}, "more")

    assert await rig.run() == "long"
    assert ending(rig)[0] == "success"
    assert await rig.run() == "Budget reached: 180 of 100 tokens"


async def test_dollars(rig: Rig) -> None:
    working(limited(rig, max_cost=0.5), cost_usd="0.2")

    assert await rig.run() == "Budget reached: 0.6 of 0.5 US dollars"
    assert ending(rig)[2] == {"limit": "max_cost", "allowed": 0.5, "spent": 0.6}
    assert len(rig.of("provider:request")) == 3


async def test_a_price_that_is_not_known_is_not_nothing(rig: Rig) -> None:
    """A limit that cannot be enforced admits no further request."""
    working(limited(rig, max_cost=0.5))

    text = await rig.run()
    assert text == ("Budget: cannot enforce max_cost: the US dollars of a model call are unknown")
    assert ending(rig)[2] == {"limit": "max_cost", "allowed": 0.5, "spent": None}
    assert len(rig.of("provider:request")) == 1


async def test_tokens_that_are_not_reported_are_not_none(rig: Rig) -> None:
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    working(limited(rig, max_tokens=1000), **usage)

    assert (await rig.run()).startswith("Budget: cannot enforce max_tokens")
    assert len(rig.of("provider:request")) == 1


@pytest.mark.parametrize("parallel", [True, False])
async def test_tool_calls_over_the_limit_are_answered_and_not_run(rig: Rig, parallel: bool) -> None:
    limited(rig, max_tool_calls=3)
    rig.config = {"parallel_tools": parallel}
    tool = rig.add_tool(echo_tool())
    first = calls(*[call(text=f"a{n}", id=f"a{n}") for n in range(2)])
    second = calls(*[call(text=f"b{n}", id=f"b{n}") for n in range(3)])
    rig.replies(first, second, "never said")

    assert await rig.run() == "Budget reached: 3 of 3 tool calls"
    assert [input["text"] for input in tool.inputs] == ["a0", "a1", "b0"]
    assert rig.context.results() == {
        "a0": "A0",
        "a1": "A1",
        "b0": "B0",
        "b1": "Error: not run: the session's budget of tool calls is used up",
        "b2": "Error: not run: the session's budget of tool calls is used up",
    }
    refused = [data["tool_call_id"] for data in rig.of("tool:error")]
    assert refused == ["b1", "b2"]
    assert {data["error"]["type"] for data in rig.of("tool:error")} == {"BudgetReached"}


async def test_after_the_last_tool_call_the_model_may_still_answer(rig: Rig) -> None:
    limited(rig, max_tool_calls=1)
    rig.add_tool(echo_tool())
    rig.replies(calls(call(text="a")), "answer", "more")

    assert await rig.run() == "answer"
    assert await rig.run() == "Budget reached: 1 of 1 tool calls"


async def test_time_stops_a_tool_that_hangs(rig: Rig) -> None:
    limited(rig, max_seconds=0.2)

    async def hang(_: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(60)
        raise AssertionError

    rig.add_tool(FunctionTool("hang", hang))
    rig.replies(calls(call("hang", id="h")), "never said")

    text = await asyncio.wait_for(rig.run(), 20)
    assert text.startswith("Budget reached: 0.")
    assert text.endswith(" of 0.2 seconds")
    assert rig.context.results() == {"h": "Error: interrupted (it may have taken effect)"}
    assert len(rig.of("provider:request")) == 1


async def test_time_stops_an_answer_that_does_not_come(rig: Rig) -> None:
    limited(rig, max_seconds=0.2)
    rig.replies({"text": "too late", "delay": 60})

    text = await asyncio.wait_for(rig.run(), 20)
    assert text.endswith(" of 0.2 seconds")
    assert rig.context.roles() == ["user"]


async def test_time_between_turns_does_not_count(rig: Rig) -> None:
    limited(rig, max_seconds=30)
    rig.replies("one", "two")
    await rig.run()
    after_one = budget(rig).seconds()
    await asyncio.sleep(0.05)
    assert budget(rig).seconds() == after_one
    await rig.run()
    assert budget(rig).seconds() > after_one


async def test_what_was_spent_before_counts(rig: Rig) -> None:
    limited(rig, max_steps=3)
    rig.replies("one")
    await rig.run()
    saved = budget(rig).as_dict()

    again = Rig(rig.kind)
    limited(again, max_steps=1)
    again.coordinator.register_capability("session.spent", saved)
    again.replies("two")
    assert await again.run() == "Budget reached: 1 of 1 model calls"
    assert again.of("provider:request") == []

    raised = Rig(rig.kind)
    limited(raised, max_steps=2)
    raised.coordinator.register_capability("session.spent", saved)
    raised.replies("two")
    assert await raised.run() == "two"


async def test_what_cannot_be_read_of_it_counts_as_nothing(rig: Rig) -> None:
    rig.coordinator.register_capability(
        "session.spent", {"steps": "many", "cost_usd": "NaN", "seconds": None, "tokens": 7}
    )
    rig.replies("one")
    await rig.run()
    spent = budget(rig).as_dict()
    assert (spent["steps"], spent["cost_usd"]) == (1, "0")
    assert spent["tokens"] > 7


class Family(Rig):
    """A session whose tool `delegate` runs a sub-agent in a session of its own."""

    def add_agent(self, child: Rig) -> None:
        async def delegate(input: dict[str, Any]) -> str:
            shared = self.coordinator.get_capability("session.budget")
            child.coordinator.register_capability("session.budget", shared)
            await loop_basic.mount(child.coordinator, None)
            return await child.run(input["task"])

        self.add_tool(FunctionTool("delegate", delegate))


async def test_sub_agents_use_the_same_budget(rig: Rig) -> None:
    family = Family(rig.kind)
    limited(family, max_steps=4)
    child = Rig(rig.kind)
    working(child)
    family.add_agent(child)
    family.replies(calls(call("delegate", id="d", task="dig")), "never said")

    assert await family.run() == "Budget reached: 4 of 4 model calls"
    assert len(child.of("provider:request")) == 3
    assert child.last("orchestrator:complete")["reason"] == "budget"
    assert family.context.results() == {"d": "Budget reached: 4 of 4 model calls"}
    assert len(family.of("provider:request")) == 1


async def test_a_sub_agent_may_have_limits_of_its_own(rig: Rig) -> None:
    family = Family(rig.kind)
    limited(family, max_steps=10)
    child = Rig(rig.kind)
    limited(child, max_steps=2)
    working(child)
    family.add_agent(child)
    family.replies(calls(call("delegate", id="d", task="dig")), "went on")

    assert await family.run() == "went on"
    assert family.context.results() == {"d": "Budget reached: 2 of 2 model calls"}
    assert budget(family).as_dict()["steps"] == 4
    assert budget(child).as_dict()["steps"] == 2


async def test_sub_agents_at_once_go_over_by_one_request_at_most(rig: Rig) -> None:
    """What each request takes is known from those before: one that may be too much waits."""
    family = Family(rig.kind)
    limited(family, max_tokens=1000)
    for number in range(6):
        child = Rig(rig.kind)
        usage = {"input_tokens": 80, "output_tokens": 20}
        tool = child.add_tool(echo_tool())
        asks = [
            {**calls(call(text=f"{n}")), "usage": usage, "delay": 0.005 * (number + 1)}
            for n in range(30)
        ]
        child.replies(*asks)
        family.add_agent(child)
        family.tools[f"delegate{number}"] = family.tools.pop("delegate")
        assert tool.inputs == []
    first = calls(*[call(f"delegate{n}", task="dig") for n in range(6)])
    family.replies({**first, "usage": {"input_tokens": 90, "output_tokens": 10}}, "never said")

    assert (await family.run()).startswith("Budget reached: 1,0")
    assert 1000 <= budget(family).as_dict()["tokens"] <= 1100


def admitted(budget: Budget) -> Ticket:
    ticket = budget.admit()
    assert ticket is not None
    return ticket


async def test_a_request_that_waits_can_be_given_up() -> None:
    shared = Budget(BudgetConfig(max_tokens=100))
    admitted(shared).settle({"total_tokens": 60})
    second = admitted(shared)
    assert shared.admit() is None, "another 60 may be too much"
    waiting, given_up = (asyncio.create_task(shared.wait_for_settlement()) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    second.settle()
    await asyncio.wait_for(waiting, 5)
    assert shared.as_dict()["steps"] == 1
    admitted(shared).settle({"total_tokens": 30})
    assert shared.as_dict()["tokens"] == 90


async def test_who_waits_hears_of_a_request_that_ends_before_the_wait_has_begun() -> None:
    """Both may come to pass in one round of the event loop."""
    shared = Budget(BudgetConfig(max_tokens=100))
    admitted(shared).settle({"total_tokens": 60})
    second = admitted(shared)
    assert shared.admit() is None
    waiting = asyncio.create_task(shared.wait_for_settlement())
    second.settle()
    await asyncio.wait_for(waiting, 5)


async def test_listeners_hear_of_everything_that_is_used(rig: Rig) -> None:
    heard: list[tuple[int, int]] = []
    family = Family(rig.kind)

    def listen() -> None:
        spent = budget(family).as_dict()
        heard.append((spent["steps"], spent["tool_calls"]))

    budget(family).listen(listen)
    child = Rig(rig.kind)
    child.replies("dug")
    family.add_agent(child)
    family.replies(calls(call("delegate", task="dig")), "done")
    await family.run()
    assert heard == [(1, 0), (1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"max_token": 5}, "unknown key 'max_token', did you mean 'max_tokens'"),
        ({"max_steps": 0}, "'max_steps': input should be greater than 0"),
        ({"max_cost": "cheap"}, "'max_cost': "),
        (["max_steps"], "config must be a mapping"),
    ],
)
async def test_a_budget_that_is_not_valid_does_not_mount(given: Any, reported: str) -> None:
    rig = Rig(loop_basic_type())
    rig.plan["session"]["budget"] = given
    with pytest.raises(ValueError, match=r"^session\.budget: ") as caught:
        await loop_basic.mount(rig.coordinator, None)
    assert reported in str(caught.value)


def loop_basic_type() -> Any:
    from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator

    return BasicOrchestrator


async def test_without_a_coordinator_there_is_no_budget(rig: Rig) -> None:
    limited(rig, max_steps=1)
    rig.replies(calls(call("absent")), "answer")
    rig.context = ListContext()
    assert await rig.run(alone=True) == "answer"


async def test_a_hook_that_rewrites_an_answer_does_not_make_it_cost_nothing(rig: Rig) -> None:
    limited(rig, max_tokens=100)
    usage = {"input_tokens": 90, "output_tokens": 30}
    rig.replies({"text": "secret", "usage": usage}, "more")

    def rewrite(data: dict[str, Any]) -> HookResult:
        change = {"content": [TextBlock(text="rewritten")], "usage": None}
        response = data["response"].model_copy(update=change)
        return HookResult(action="modify", data={**data, "response": response})

    rig.on("provider:response", rewrite)
    assert await rig.run() == "rewritten"
    assert rig.last("orchestrator:complete")["usage"]["total_tokens"] == 120
    assert await rig.run() == "Budget reached: 120 of 100 tokens"


async def test_an_answer_that_a_hook_refuses_was_paid_for(rig: Rig) -> None:
    limited(rig, max_tokens=100)
    rig.replies({"text": "no", "usage": {"input_tokens": 90, "output_tokens": 30}}, "more")
    rig.on("provider:response", HookResult(action="deny", reason="not that"))

    assert await rig.run() == "Denied: not that"
    assert await rig.run() == "Budget reached: 120 of 100 tokens"


async def test_an_answer_counts_though_the_turn_is_stopped_while_hooks_look_at_it(rig: Rig) -> None:
    limited(rig, max_tokens=100)
    rig.replies({"text": "whole", "usage": {"input_tokens": 90, "output_tokens": 30}}, "more")

    async def look(*_: Any) -> None:
        rig.coordinator.cancellation.request_immediate()
        await asyncio.sleep(60)

    unregister = rig.coordinator.hooks.register("provider:response", look, name="slow")
    await asyncio.wait_for(rig.run(), 20)
    assert ending(rig)[1] == "cancelled"
    unregister()
    rig.coordinator.cancellation.reset()
    assert await rig.run() == "Budget reached: 120 of 100 tokens"


async def test_first_requests_of_sub_agents_go_over_by_one_at_most(rig: Rig) -> None:
    """The session's own requests do not predict the usage of its sub-agents."""
    family = Family(rig.kind)
    limited(family, max_tokens=1000)
    for number in range(5):
        child = Rig(rig.kind)
        usage = {"input_tokens": 800, "output_tokens": 100}
        child.replies({"text": "dug", "usage": usage, "delay": 0.02})
        family.add_agent(child)
        family.tools[f"delegate{number}"] = family.tools.pop("delegate")
    first = calls(*[call(f"delegate{n}", task="dig") for n in range(5)])
    family.replies({**first, "usage": {"input_tokens": 10, "output_tokens": 5}}, "never said")

    assert await family.run() == "Budget reached: 1,815 of 1,000 tokens"


async def test_a_request_is_not_made_when_its_own_summary_used_up_the_budget(rig: Rig) -> None:
    limited(rig, max_tokens=100)

    class Summing(ListContext):
        """Asks for a summary before it gives a view."""

        async def get_messages_for_request(
            self, token_budget: int | None = None, provider: Any = None
        ) -> list[dict[str, Any]]:
            admitted(budget(rig)).settle({"total_tokens": 120})
            return list(self.messages)

    rig.context = Summing()
    rig.replies("never said")
    assert await rig.run() == "Budget reached: 120 of 100 tokens"
    assert rig.of("provider:request") == []
    assert budget(rig).as_dict()["steps"] == 1
