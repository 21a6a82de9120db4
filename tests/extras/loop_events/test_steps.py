"""Plans and steps."""

import asyncio
import json
import logging
from typing import Any

import pytest

from amplifier_core.llm_errors import AuthenticationError, ConfigurationError
from amplifier_core.models import HookResult
from amplifier_core.testing import MockCoordinator
from amplifier_extras import loop_events
from tests.extras.loop_events.conftest import Events
from tests.modules._shared.loop.rig import FunctionTool, echo_tool
from tests.support.llm_server import Reply, Stall, Status, ToolCall

THREE = [
    {"name": "draft", "prompt": "Write it."},
    {"name": "review", "prompt": "Look at it."},
    {"name": "fix", "prompt": "Fix it."},
]


def asks(what: str = "a", **more: Any) -> Reply:
    return Reply(tool_calls=[ToolCall("echo", {"text": what}, id=f"call_{what}")], **more)


async def test_a_turn_without_steps_has_one(rig: Events) -> None:
    await rig.says("done")
    assert await rig.run("go") == "done"

    assert rig.decisions() == [
        "plan:start", "plan:end", "step:start", "provider:request", "loop:next", "step:end",
    ]  # fmt: skip
    assert rig.said() == ["go"]
    started, ended = rig.last("plan:start"), rig.last("plan:end")
    assert (started["prompt"], started["steps"], started["planning"]) == ("go", [], "off")
    assert (started["providers"], started["tools"]) == (["anthropic", "openai"], [])
    assert (ended["steps"], ended["source"]) == ([{"name": "prompt"}], "prompt")
    assert ended["span_id"] == started["span_id"]
    assert ended["parent_span_id"] == rig.last("orchestrator:complete")["span_id"]


async def test_declared_steps_run_in_order_in_one_conversation(rig: Events) -> None:
    await rig.says(asks("a"), "A draft.", "Fine.", "Fixed.")
    rig.add_tool(echo_tool())
    rig.config["steps"] = THREE

    assert await rig.run("a poem, please") == "Fixed."

    assert rig.said() == ["a poem, please", "Write it.", "Look at it.", "Fix it."]
    assert rig.steps_run() == ["draft", "review", "fix"]
    assert rig.last("plan:end")["source"] == "config"
    ends = rig.of("step:end")
    assert [d["response"] for d in ends] == ["A draft.", "Fine.", "Fixed."]
    assert [d["next"] for d in ends] == ["review", "fix", None]
    assert [(d["run"], d["count"], d["status"]) for d in ends] == [
        (1, 3, "success"), (2, 3, "success"), (3, 3, "success"),
    ]  # fmt: skip
    assert [d["span_id"] for d in rig.of("step:start")] == [d["span_id"] for d in ends]
    assert [d["iteration"] for d in rig.of("provider:request")] == [1, 2, 3, 4]
    assert rig.ending() == ("success", None)
    assert rig.last("orchestrator:complete")["turn_count"] == 4


async def test_a_step_names_its_provider_its_model_and_its_tools(rig: Events) -> None:
    await rig.says("A draft.", "Fixed.", other=("Fine.",))
    for name in ("read", "write"):
        rig.add_tool(echo_tool(name))
    rig.config["steps"] = [
        {"name": "draft", "model": "claude-haiku-4-5"},
        {"name": "review", "prompt": "Look.", "provider": "openai", "tools": ["read"]},
        {"name": "fix", "tools": []},
    ]
    assert await rig.run("go") == "Fixed."

    draft, fix = (request.body for request in rig.main.completions)
    (review,) = (request.body for request in rig.other.completions)
    assert (draft["model"], fix["model"]) == ("claude-haiku-4-5", "claude-sonnet-5-5")
    assert [tool["name"] for tool in draft["tools"]] == ["read", "write"]
    assert [tool["function"]["name"] for tool in review["tools"]] == ["read"]
    assert not fix.get("tools")
    assert rig.said() == ["go", "Look.", "Next step: fix"]


async def test_a_declared_step_may_redirect(rig: Events) -> None:
    await rig.says("one", "three")
    one, two, three = THREE
    rig.config["steps"] = [{**one, "next": "fix"}, two, {**three, "next": "end"}]
    assert await rig.run("go") == "three"
    assert rig.steps_run() == ["draft", "fix"]


async def test_a_handler_redirects_at_the_end_of_a_step(rig: Events) -> None:
    await rig.says("A draft.", "Not good.", "A draft, fixed.", "Good.", "Thanks.")
    rig.config["steps"] = [
        {"name": "draft", "prompt": "Write it."},
        {"name": "review", "prompt": "Look at it."},
        {"name": "thank", "prompt": "Say thanks."},
    ]
    rig.change(
        "step:end", lambda data: {"next": "draft"} if data["response"] == "Not good." else None
    )
    assert await rig.run("go") == "Thanks."
    assert rig.steps_run() == ["draft", "review", "draft", "review", "thank"]
    assert [d["run"] for d in rig.of("step:start")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("stop", [None, "end"])
async def test_a_handler_ends_the_turn_at_the_end_of_a_step(rig: Events, stop: Any) -> None:
    await rig.says("A draft.")
    rig.config["steps"] = THREE
    rig.change("step:end", lambda _: {"next": stop})
    assert await rig.run("go") == "A draft."
    assert rig.steps_run() == ["draft"]
    assert rig.ending() == ("success", None)


async def test_a_handler_leaves_a_step_for_another_in_the_middle(rig: Events) -> None:
    await rig.says(asks("a", text="Looking."), "Fixed.")
    rig.add_tool(echo_tool())
    rig.config["steps"] = THREE
    rig.change("loop:next", lambda data: {"next": "fix"} if data["tool_calls"] else None)

    assert await rig.run("go") == "Fixed."

    assert rig.steps_run() == ["draft", "fix"]
    assert rig.of("step:end")[0]["next"] == "fix"
    assert rig.of("loop:next")[0]["steps"] == ["draft", "review", "fix"]
    assert rig.context.results() == {"call_a": "A"}


@pytest.mark.parametrize("event", ["step:end", "loop:next"])
async def test_a_step_that_does_not_exist_is_an_error(rig: Events, event: str) -> None:
    await rig.says("one")
    rig.change(event, lambda _: {"next": "nowhere"})
    with pytest.raises(ConfigurationError, match=f"a handler of {event} chose 'nowhere'"):
        await rig.run("go")
    assert len(rig.of("step:end")) == 1
    assert rig.ending() == ("error", None)


async def test_a_handler_plans(rig: Events) -> None:
    await rig.says("one", "two")
    rig.config |= {"steps": THREE, "planning": "model"}
    rig.change("plan:start", lambda data: {"steps": [*data["steps"][:1], {"name": "more"}]})
    assert await rig.run("go") == "two"
    assert rig.last("plan:end")["source"] == "handler"
    assert rig.steps_run() == ["draft", "more"]


async def test_a_handler_takes_all_steps_away(rig: Events) -> None:
    await rig.says("done")
    rig.config["steps"] = THREE
    rig.change("plan:start", lambda _: {"steps": []})
    assert await rig.run("go") == "done"
    assert rig.steps_run() == ["prompt"]


async def test_a_handler_changes_the_plan_when_it_is_made(rig: Events) -> None:
    await rig.says("one", "three")
    rig.config["steps"] = THREE
    rig.change("plan:end", lambda data: {"steps": [data["steps"][0], data["steps"][2]]})
    assert await rig.run("go") == "three"
    assert rig.steps_run() == ["draft", "fix"]


async def test_a_handler_changes_a_step_before_it_runs(rig: Events) -> None:
    await rig.says("one", other=("two",))
    rig.config["steps"] = THREE[:2]

    def change(data: dict[str, Any]) -> dict[str, Any] | None:
        if data["step"]["name"] == "review":
            return {"step": {**data["step"], "prompt": "Look closely.", "provider": "openai"}}
        return None

    rig.change("step:start", change)
    assert await rig.run("go") == "two"
    assert rig.said() == ["go", "Write it.", "Look closely."]
    assert rig.last("step:end")["step"]["provider"] == "openai"


@pytest.mark.parametrize(
    ("event", "values", "said"),
    [
        ("plan:start", {"steps": [{"prompt": "x"}]}, r"'steps\[0\].name' is required"),
        ("plan:start", {"steps": "draft"}, "'steps': input should be a valid list"),
        ("plan:end", {"steps": [{"name": "a"}, {"name": "a"}]}, "two steps are named 'a'"),
        ("step:start", {"step": {"name": "a", "tols": []}}, r"unknown key 'steps\[0\].tols'"),
        ("step:start", {"step": {"name": "end"}}, "cannot be the name of a step"),
        ("step:start", {"step": {"name": "a", "provider": "x"}}, "step 'a' chose the provider 'x'"),
        ("step:start", {"step": {"name": "a", "tools": ["x"]}}, "step 'a' names the tool 'x'"),
    ],
)
async def test_what_a_handler_leaves_is_checked(
    rig: Events, event: str, values: dict[str, Any], said: str
) -> None:
    await rig.says("never")
    rig.change(event, lambda _: values)
    with pytest.raises(ConfigurationError, match=said):
        await rig.run("go")
    assert rig.main.requests == []
    assert len(rig.of("plan:start")) == len(rig.of("plan:end")) == 1
    assert len(rig.of("step:start")) == len(rig.of("step:end"))


@pytest.mark.parametrize("event", ["plan:start", "plan:end", "step:start", "step:end"])
async def test_a_handler_denies(rig: Events, event: str) -> None:
    await rig.says(*(["one"] if event == "step:end" else []))
    rig.config["steps"] = THREE
    rig.on(event, HookResult(action="deny", reason="not this"))
    assert await rig.run("go") == "Denied: not this"
    assert rig.ending() == ("incomplete", "denied")
    for what in ("plan", "step"):
        started = len(rig.of(f"{what}:start"))
        # Who denies an event keeps those behind it from seeing it, this test included.
        assert len(rig.of(f"{what}:end")) == started + (event == f"{what}:start") - (
            event == f"{what}:end"
        )


async def test_a_plan_is_approved_by_a_person(rig: Events) -> None:
    class Person:
        asked: list[str] = []  # noqa: RUF012

        async def request_approval(self, prompt: str, *_: Any) -> str:
            self.asked.append(prompt)
            return "Deny"

    await rig.says()
    rig.with_people(approval=Person())
    rig.config["steps"] = THREE
    rig.on("plan:end", HookResult(action="ask_user", approval_prompt="Work like this?"))
    assert (await rig.run("go")).startswith("Denied: ")
    assert Person.asked == ["Work like this?"]
    assert rig.main.requests == []


# Planned by the model


async def test_the_model_plans(rig: Events) -> None:
    plan = [{"name": "look", "prompt": "Look."}, {"name": "leap", "prompt": "Leap.", "why": "fun"}]
    await rig.says(f"Here:\n```json\n{json.dumps(plan)}\n```", "I looked.", "I leapt.")
    rig.add_tool(echo_tool())
    rig.config["planning"] = "model"

    assert await rig.run("go") == "I leapt."

    asked, first, _ = (request.body for request in rig.main.completions)
    assert not asked.get("tools")
    assert "JSON array" in str(asked["messages"])
    assert "JSON array" not in str(first["messages"])
    assert first["tools"]
    assert rig.said() == ["go", "Look.", "Leap."]
    assert rig.context.roles() == ["user", "user", "assistant", "user", "assistant"]
    assert rig.last("plan:end")["source"] == "model"
    assert rig.last("plan:end")["steps"] == [
        {"name": "look", "prompt": "Look."},
        {"name": "leap", "prompt": "Leap."},
    ]
    shown = "".join(d["delta"] for d in rig.of("content_block:delta"))
    assert shown == "I looked.I leapt."
    done = rig.last("orchestrator:complete")
    assert (done["turn_count"], done["usage"]["output_tokens"]) == (3, 15)
    assert [d["iteration"] for d in rig.of("provider:request")] == [1, 2, 3]


@pytest.mark.parametrize(
    "answer",
    ["I would rather not.", "[1, 2]", "[]", '[{"name": "end", "prompt": "x"}]', '[{"name": "a"}]'],
)
async def test_an_answer_that_is_not_a_plan_is_reported_and_the_turn_continues(
    rig: Events, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.says(answer, "done")
    rig.config["planning"] = "model"
    with caplog.at_level(logging.WARNING):
        assert await rig.run("go") == "done"
    assert "returned no plan" in caplog.text
    assert rig.last("plan:end")["source"] == "prompt"
    assert rig.said() == ["go"]


async def test_a_failed_planning_is_closed(rig: Events) -> None:
    await rig.says(Status(401))
    rig.config["planning"] = "model"
    with pytest.raises(AuthenticationError):
        await rig.run("go")
    ended = rig.last("plan:end")
    assert (ended["steps"], ended["error"]["type"]) == ([], "AuthenticationError")
    assert rig.of("step:start") == []


# Limits


async def test_steps_that_go_round_end(rig: Events) -> None:
    await rig.says("one", "two", "three")
    rig.config |= {"max_steps": 3}
    rig.change("step:end", lambda _: {"next": "prompt"})
    assert await rig.run("go") == "three"
    assert rig.ending() == ("incomplete", "max_steps")
    assert len(rig.main.completions) == 3


async def test_max_iterations_counts_over_all_steps(rig: Events) -> None:
    await rig.says("one", "two")
    rig.config |= {"steps": THREE, "max_iterations": 2}
    assert await rig.run("go") == "Max iterations reached"
    assert rig.ending() == ("incomplete", "max_iterations")
    assert [d["reason"] for d in rig.of("step:end")] == [None, None, "max_iterations"]


async def test_a_step_may_have_a_limit_of_its_own(rig: Events) -> None:
    await rig.says(asks("a"), asks("b"), "Gave up.")
    rig.add_tool(echo_tool())
    rig.config["steps"] = [
        {"name": "try", "max_iterations": 2, "next": "end"},
        {"name": "give up", "prompt": "Say so."},
    ]
    rig.change(
        "step:end", lambda data: {"next": "give up"} if data["reason"] == "max_iterations" else None
    )
    assert await rig.run("go") == "Gave up."
    assert rig.ending() == ("success", None)
    assert rig.of("step:end")[0]["status"] == "incomplete"


async def test_without_a_handler_a_step_at_its_limit_ends_the_turn(rig: Events) -> None:
    await rig.says(asks("a"))
    rig.add_tool(echo_tool())
    rig.config["steps"] = [{"name": "try", "max_iterations": 1}, {"name": "more"}]
    assert await rig.run("go") == "Max iterations reached"
    assert rig.ending() == ("incomplete", "max_iterations")
    assert rig.steps_run() == ["try"]


@pytest.mark.parametrize(
    ("limits", "requests"), [({"max_steps": 2}, 2), ({"max_tokens": 25}, 2), ({"max_steps": 1}, 1)]
)
async def test_budgets_are_honoured(rig: Events, limits: dict[str, int], requests: int) -> None:
    rig.plan["session"]["budget"] = limits
    await rig.says("one", "two", "three")
    rig.config["steps"] = THREE
    rig.change("step:end", lambda _: {"next": "draft"})

    assert (await rig.run("go")).startswith("Budget reached: ")

    assert rig.ending() == ("incomplete", "budget")
    assert len(rig.main.completions) == requests
    assert len(rig.of("step:start")) == len(rig.of("step:end")) == requests + 1
    assert rig.last("step:end")["reason"] == "budget"


async def test_planning_counts_in_the_budget(rig: Events) -> None:
    rig.plan["session"]["budget"] = {"max_steps": 1}
    await rig.says('[{"name": "a", "prompt": "A."}]')
    rig.config["planning"] = "model"
    assert (await rig.run("go")).startswith("Budget reached: ")
    assert len(rig.main.completions) == 1


# Stopping


@pytest.mark.parametrize("how", ["graceful", "immediate", "task"])
async def test_cancelling_closes_the_step_and_nothing_follows(rig: Events, how: str) -> None:
    started, let_go = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        started.set()
        await let_go.wait()
        return "waited"

    rig.add_tool(FunctionTool("echo", wait))
    await rig.says(asks("a"), "Back again.")
    rig.config["steps"] = THREE
    rig.change("step:end", lambda data: {"next": "fix"} if data["count"] == 3 else None)
    turn = asyncio.create_task(rig.run("go"))
    await asyncio.wait_for(started.wait(), 10)
    if how == "task":
        turn.cancel()
    else:
        await rig.coordinator.request_cancel(immediate=how == "immediate")
        if how == "graceful":
            let_go.set()
    await asyncio.wait([turn])

    assert turn.cancelled() == (how == "task")
    assert rig.ending() == ("incomplete", "cancelled")
    assert rig.steps_run() == ["draft"]
    (ended,) = rig.of("step:end")
    assert (ended["status"], ended["reason"]) == ("incomplete", "cancelled")

    rig.coordinator.cancellation.reset()
    rig.config["steps"] = []
    assert await rig.run("go on") == "Back again."


async def test_cancelling_while_the_model_plans(rig: Events) -> None:
    await rig.says(Reply("[", fault=Stall(after=1)))
    rig.config["planning"] = "model"
    turn = asyncio.create_task(rig.run("go"))
    await rig.main.arrived(1)
    await rig.coordinator.request_cancel(immediate=True)
    assert await turn == ""
    assert rig.ending() == ("incomplete", "cancelled")
    assert len(rig.of("plan:end")) == 1
    assert rig.steps_run() == []


async def test_an_error_closes_the_step(rig: Events) -> None:
    await rig.says("one", Status(401))
    rig.config["steps"] = THREE
    with pytest.raises(AuthenticationError):
        await rig.run("go")
    ended = rig.of("step:end")[1]
    assert (ended["status"], ended["error"]["type"]) == ("error", "AuthenticationError")
    assert len(rig.of("step:start")) == len(rig.of("step:end")) == 2


async def test_steering_is_answered_in_the_step_it_was_said_in(rig: Events) -> None:
    await rig.says("one", "one and a half", "two")
    rig.config["steps"] = THREE[:2]
    texts = ["shorter!"]
    rig.on("content_block:end", lambda _: rig.loop.steer(texts.pop()) if texts else None)
    assert await rig.run("go") == "two"
    assert rig.said() == ["go", "Write it.", "shorter!", "Look at it."]
    assert rig.of("step:end")[0]["response"] == "one and a half"


# Settings


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"steps": [{"name": "a"}, {"name": "a"}]}, "two steps are named 'a'"),
        ({"steps": [{"name": "a", "next": "b"}]}, "'next' of step 'a' is 'b', which is not a step"),
        ({"steps": [{"name": "continue"}]}, "cannot be the name of a step"),
        ({"steps": [{"name": " "}]}, "a step requires a name"),
        ({"steps": [{"name": "a", "promt": "x"}]}, r"unknown key 'steps\[0\].promt'"),
        ({"max_steps": 0}, "'max_steps'"),
    ],
)
async def test_settings_are_checked(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await loop_events.mount(MockCoordinator(), config)
