"""The tool in any app: its calls of `session.spawn`, and what the model sees."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockCoordinator
from amplifier_modules.tool_task import mount

AGENTS = {"reader": {"description": "Reads\n  with care"}, "writer": {}}


class App:
    """An app that runs agents, as far as the tool can see.

    Attributes:
        asked: The keyword arguments of each call.
        events: The tool's events, in order.
        at_once: Most tasks that ran at the same time.
    """

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.at_once = self._running = 0

    async def run(self, **arguments: Any) -> Mapping[str, Any]:
        self.asked.append(arguments)
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        try:
            await asyncio.sleep(0.01)
            if isinstance(self.answer, Exception):
                raise self.answer
            if self.answer == "hang":
                await asyncio.sleep(60)
            return {
                "output": "done",
                "session_id": arguments["sub_session_id"],
                **(self.answer if isinstance(self.answer, dict) else {}),
            }
        finally:
            self._running -= 1

    async def note(self, event: str, data: dict[str, Any]) -> HookResult:
        self.events.append((event, dict(data)))
        return HookResult()


async def mounted(
    app: App | None, depth: int | None = None, **config: Any
) -> tuple[MockCoordinator, Any]:
    coordinator = MockCoordinator()
    coordinator.config["agents"] = AGENTS
    if depth is not None:
        coordinator.register_capability("session.depth", depth)
    if app is not None:
        coordinator.register_capability("session.spawn", app.run)
        coordinator.register_capability("session.resume", app.run)
        for event in ("task:start", "task:end"):
            coordinator.hooks.register(event, app.note)
    await mount(coordinator, config)
    return coordinator, coordinator.get("tools", "task")


def reported(result: ToolResult) -> str:
    assert not result.success
    assert result.error is not None
    return result.error["message"]


async def test_a_task_uses_the_published_parameter_names() -> None:
    app = App({"usage": {"input_tokens": 3}, "cost_usd": "0.5", "status": "success"})
    coordinator, tool = await mounted(app, exclude_tools=["tool-bash"], inherit_hooks=["hooks-x"])
    result = await tool.execute({"agent": "reader", "instruction": " read "})
    (asked,) = app.asked
    session_id = asked.pop("sub_session_id")
    assert session_id.startswith("test-session-")
    assert session_id.endswith("_reader")
    assert asked == {
        "agent_name": "reader",
        "instruction": "read",
        "parent_session": coordinator.session,
        "agent_configs": AGENTS,
        "tool_inheritance": {"exclude_tools": ["tool-bash"]},
        "hook_inheritance": {"inherit_hooks": ["hooks-x"]},
    }
    assert result.output == {
        "response": "done",
        "session_id": session_id,
        "usage": {"input_tokens": 3, "cost_usd": "0.5"},
    }


async def test_a_task_can_be_continued() -> None:
    app = App()
    _, tool = await mounted(app)
    result = await tool.execute({"session_id": "s1-x", "instruction": "more"})
    assert app.asked == [{"sub_session_id": "s1-x", "instruction": "more"}]
    assert result.output["session_id"] == "s1-x"


async def test_the_description_lists_the_agents() -> None:
    coordinator, tool = await mounted(App())
    assert "- reader: Reads with care\n- writer" in tool.description
    _, narrow = await mounted(App(), agents=["writer"])
    assert "reader" not in narrow.description
    coordinator.config["agents"] = {}
    assert "No agents" in tool.description


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"agent": "reeder", "instruction": "x"},
            "unknown agent 'reeder'; available agents: reader, wri",
        ),
        ({"instruction": "x"}, "'agent' is required; available agents: reader, writer"),
        ({"agent": "reader"}, "'instruction' is required"),
        ({"agent": "reader", "instruction": "  "}, "the instruction is empty"),
        ({"agent": "reader", "instruction": "x", "prompt": "x"}, "unknown parameter 'prompt'"),
        ({"agent": 3, "instruction": "x"}, "must be of type string"),
        ("reader: x", "must be an object"),
    ],
)
async def test_invalid_calls_are_reported(given: Any, message: str) -> None:
    app = App()
    _, tool = await mounted(app)
    assert message in reported(await tool.execute(given))
    assert app.asked == app.events == []


async def test_a_program_without_agents_is_reported() -> None:
    _, tool = await mounted(None)
    message = reported(await tool.execute({"agent": "reader", "instruction": "x"}))
    assert message == "this program cannot run agents: the capability 'session.spawn' is missing"
    assert "session.resume" in reported(await tool.execute({"session_id": "s", "instruction": "x"}))


class Failed(Exception):
    kind = "RateLimitError"
    session_id = "s1-sub"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            Failed("slow down"),
            "RateLimitError",
            "agent 'reader' failed: slow down; continue with se",
        ),
        (ValueError(), "ValueError", "agent 'reader' failed: ValueError"),
        (TimeoutError("no answer"), "TimeoutError", "agent 'reader' failed: no answer"),
        ({"status": "cancelled"}, "Interrupted", "interrupted before it finished; continue with"),
        (
            {"status": "incomplete", "reason": "budget", "output": "Budget reached"},
            "Incomplete",
            "without an answer (budget): Budget reached; continue with session_id",
        ),
        ({"status": "error", "output": ""}, "AgentError", "the agent failed"),
    ],
)
async def test_a_task_that_fails_is_a_result(answer: Any, kind: str, message: str) -> None:
    app = App(answer)
    _, tool = await mounted(app)
    result = await tool.execute({"agent": "reader", "instruction": "x"})
    assert message in reported(result)
    assert result.error is not None
    assert result.error["type"] == kind
    (start, _), (end, data) = app.events
    assert (start, end, data["success"]) == ("task:start", "task:end", False)
    assert data["error"] == result.error


async def test_a_plain_text_answer_is_accepted() -> None:
    coordinator, tool = await mounted(None)
    coordinator.register_capability("session.spawn", lambda **_: "said")
    result = await tool.execute({"agent": "reader", "instruction": "x"})
    assert result.output["response"] == "said"
    assert result.output["session_id"].endswith("_reader")


async def test_a_truncated_answer_is_a_success_with_a_note() -> None:
    app = App({"status": "incomplete", "reason": "length"})
    _, tool = await mounted(app)
    result = await tool.execute({"agent": "reader", "instruction": "x"})
    assert (result.success, result.output["note"]) == (True, "the answer is cut off (length)")


async def test_a_task_has_a_time_limit() -> None:
    app = App("hang")
    _, tool = await mounted(app, timeout=0.1)
    result = await tool.execute({"agent": "reader", "instruction": "x"})
    assert reported(result).startswith(
        "the task reached its time limit of 0.1 s; continue with session_id"
    )
    assert app.events[-1][1]["status"] == "error"


async def test_a_cancelled_task_emits_its_end() -> None:
    app = App("hang")
    _, tool = await mounted(app)
    task = asyncio.create_task(tool.execute({"agent": "reader", "instruction": "x"}))
    await asyncio.wait([task], timeout=0.05)
    assert app.asked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event for event, _ in app.events] == ["task:start", "task:end"]
    assert app.events[-1][1]["status"] == "cancelled"


async def test_a_task_that_a_stop_interrupts_names_the_session_to_continue() -> None:
    app = App("hang")
    coordinator, tool = await mounted(app)
    task = asyncio.create_task(tool.execute({"agent": "reader", "instruction": "x"}))
    await asyncio.wait([task], timeout=0.05)
    coordinator.cancellation.request_immediate()
    task.cancel()
    session_id = app.asked[0]["sub_session_id"]
    assert reported(await task).endswith(f"continue with session_id {session_id}")
    assert app.events[-1][1]["status"] == "cancelled"


@pytest.mark.parametrize(("limit", "at_once"), [(2, 2), (9, 5)])
async def test_the_number_of_parallel_tasks_is_limited(limit: int, at_once: int) -> None:
    app = App()
    _, tool = await mounted(app, max_parallel=limit)
    calls = [tool.execute({"agent": "reader", "instruction": str(n)}) for n in range(5)]
    results = await asyncio.gather(*calls)
    assert all(result.success for result in results)
    assert len({result.output["session_id"] for result in results}) == 5
    assert app.at_once == at_once


async def test_events_report_the_task_and_its_usage() -> None:
    app = App({"usage": {"output_tokens": 2}})
    _, tool = await mounted(app)
    await tool.execute({"agent": "reader", "instruction": "read"})
    (_, start), (_, end) = app.events
    assert (start["agent"], start["instruction"], start["resumed"]) == ("reader", "read", False)
    assert start["sub_session_id"] == end["sub_session_id"] == app.asked[0]["sub_session_id"]
    assert (end["success"], end["status"], end["usage"]) == (True, "success", {"output_tokens": 2})
    assert end["duration_ms"] > 0


@pytest.mark.parametrize(("depth", "most", "there"), [(0, 1, True), (1, 1, False), (1, 2, True)])
async def test_a_session_at_the_depth_limit_does_not_have_the_tool(
    depth: int, most: int, there: bool
) -> None:
    _, tool = await mounted(App(), depth, max_recursion_depth=most)
    assert (tool is not None) is there


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_depth": 9}, "max_depth"),
        ({"agents": ["reader", "absent"]}, "names absent, which the plan does not have"),
    ],
)
async def test_an_invalid_config_fails_at_mount(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await mounted(App(), **config)
