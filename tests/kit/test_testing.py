"""The test doubles: they can be mounted and asserted on."""

import asyncio
from typing import Any

import pytest

import amplifier_core
from amplifier_core import testing
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_core.hooks import HookRegistry
from amplifier_core.interfaces import ContextManager, Orchestrator, Provider, Tool
from amplifier_core.message_models import ChatRequest, ChatResponse, Message, TextBlock, ToolCall
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import (
    EventRecorder,
    MockContextManager,
    MockCoordinator,
    MockProvider,
    MockTool,
    ScriptedOrchestrator,
    TestCoordinator,
    create_test_coordinator,
    wait_for,
)

USER = {"role": "user", "content": "Hello there"}


def test_both_names_are_one_class_that_pytest_does_not_collect() -> None:
    assert TestCoordinator is MockCoordinator
    assert not TestCoordinator.__test__


def test_the_top_level_exports_the_same_objects() -> None:
    for name in set(testing.__all__) & set(amplifier_core.__all__):
        assert getattr(amplifier_core, name) is getattr(testing, name)


def test_a_coordinator_of_a_test_session() -> None:
    coordinator = MockCoordinator()
    assert isinstance(coordinator, ModuleCoordinator)
    assert coordinator.session_id == "test-session"
    assert coordinator.parent_id is None
    assert set(coordinator.config["session"]) == {"orchestrator", "context"}
    assert isinstance(coordinator.hooks, HookRegistry)


async def test_mounts_and_unmounts_take_effect_and_are_recorded() -> None:
    coordinator = MockCoordinator()
    tool, loop = MockTool("a"), ScriptedOrchestrator([])
    await coordinator.mount("tools", tool)
    await coordinator.mount("session", loop, name="orchestrator")
    assert coordinator.get("tools", "a") is tool
    assert coordinator.get("orchestrator") is loop
    await coordinator.unmount("tools", "a")
    assert coordinator.get("tools") == {}
    assert coordinator.mount_history == [
        {"mount_point": "tools", "module": tool, "name": None},
        {"mount_point": "session", "module": loop, "name": "orchestrator"},
    ]
    assert coordinator.unmount_history == [{"mount_point": "tools", "name": "a"}]


async def test_a_rejected_mount_is_not_recorded() -> None:
    coordinator = MockCoordinator()
    with pytest.raises(ValueError, match="Unknown mount point"):
        await coordinator.mount("nowhere", object())
    with pytest.raises(ValueError, match="Unknown mount point"):
        await coordinator.unmount("nowhere")
    assert coordinator.mount_history == []
    assert coordinator.unmount_history == []


async def test_approvals_are_denied_and_messages_shown_to_a_mock() -> None:
    coordinator = MockCoordinator()
    ask = HookResult(action="ask_user", approval_prompt="Really?")
    assert (await coordinator.process_hook_result(ask, "tool:pre")).action == "deny"
    coordinator.approval_system.request_approval.assert_awaited_once()
    message = HookResult(user_message="Look here")
    await coordinator.process_hook_result(message, "tool:pre", "watcher")
    coordinator.display_system.show_message.assert_called_once_with(
        "Look here", "info", "hook:watcher"
    )


async def test_a_mock_tool_returns_its_output_and_records_its_input() -> None:
    tool = MockTool()
    assert isinstance(tool, Tool)
    assert (tool.name, tool.call_count, tool.last_input) == ("mock_tool", 0, None)
    assert tool.description
    assert tool.input_schema["type"] == "object"
    result = await tool.execute({"text": "hi"})
    assert result == ToolResult(success=True, output="Success")
    assert (tool.call_count, tool.last_input) == (1, {"text": "hi"})
    tool.execute.assert_awaited_once_with({"text": "hi"})


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        (MockTool("t", "by position"), "by position"),
        (MockTool(name="t", output={"by": "name"}), {"by": "name"}),
        (MockTool(name="t", description="d", return_value="seed"), "seed"),
    ],
)
async def test_output_and_return_value_set_the_result_of_a_tool(
    tool: MockTool, output: Any
) -> None:
    assert (await tool.execute({})).output == output
    tool.output = "another"
    assert (await tool.execute({})).output == "another"


async def test_a_tool_can_be_made_to_fail() -> None:
    failure = ToolResult(success=False, error={"message": "no"})
    assert await MockTool(output=failure).execute({}) is failure


async def test_a_context_keeps_messages_in_a_list() -> None:
    context = MockContextManager()
    assert isinstance(context, ContextManager)
    await context.add_message(USER)
    assert context.messages == [USER]
    assert await context.get_messages() is context.messages
    request = await context.get_messages_for_request(token_budget=10, provider=None)
    assert request == [USER]
    assert request is not context.messages
    assert await context.get_token_count() == 2
    context.add_message.assert_awaited_once_with(USER)


async def test_a_context_can_be_filled_and_emptied() -> None:
    given = [USER]
    context = MockContextManager(messages=given)
    assert context.messages is given
    await context.set_messages([USER, USER])
    assert context.messages == [USER, USER]
    await context.clear()
    assert context.messages == []
    assert given == [USER]


async def test_a_context_never_compacts() -> None:
    context = MockContextManager([USER])
    assert context._should_compact() is False
    await context._compact_internal()
    assert context.messages == [USER]


async def test_a_provider_answers_with_one_text() -> None:
    provider = MockProvider("test", "Hi!")
    assert isinstance(provider, Provider)
    request = ChatRequest(messages=[Message(role="user", content="Hello")])
    response = await provider.complete(request, temperature=0)
    assert response["content"][0]["text"] == "Hi!"
    assert response.usage is not None
    assert provider.parse_tool_calls(response) == []
    assert provider.get_info().id == provider.name == "test"
    assert [model.id for model in await provider.list_models()] == ["mock-model"]
    provider.complete.assert_awaited_once()


async def test_the_answer_of_a_provider_can_be_replaced() -> None:
    provider = MockProvider()
    call = ToolCall(id="1", name="echo", arguments={})
    provider.complete.return_value = ChatResponse(content=[TextBlock(text="")], tool_calls=[call])
    assert provider.parse_tool_calls(await provider.complete({"messages": []})) == [call]


async def test_a_recorder_keeps_copies_of_events() -> None:
    recorder = EventRecorder()
    data = {"tool_name": "a"}
    result = await recorder.emit("tool:pre", data)
    assert (result.action, result.data) == ("continue", data)
    data["tool_name"] = "b"
    await recorder.record("tool:post", {"tool_name": "c"})
    await recorder.emit("tool:pre")
    assert recorder.events == [
        ("tool:pre", {"tool_name": "a"}),
        ("tool:post", {"tool_name": "c"}),
        ("tool:pre", {}),
    ]
    assert recorder.get_events() == recorder.events
    assert recorder.get_events("tool:post") == [("tool:post", {"tool_name": "c"})]
    recorder.clear()
    assert recorder.get_events() == []


async def test_a_recorder_can_listen_to_a_registry() -> None:
    recorder, hooks = EventRecorder(), HookRegistry()
    hooks.register("tool:pre", recorder.record)
    await hooks.emit("tool:pre", {"tool_name": "a"})
    assert recorder.events[0][1]["tool_name"] == "a"


async def test_a_scripted_loop_returns_its_answers_in_order_and_then_done() -> None:
    loop, context, recorder = ScriptedOrchestrator(["one"]), MockContextManager(), EventRecorder()
    assert isinstance(loop, Orchestrator)
    assert await loop.execute("a", context, {}, {}, recorder) == "one"
    assert (
        await loop.execute(
            prompt="b", context=context, providers={}, tools={}, hooks=recorder, coordinator=None
        )
        == "DONE"
    )
    assert loop.call_count == 2
    assert [message["content"] for message in context.messages] == ["a", "one", "b", "DONE"]
    assert [event for event, _ in recorder.events] == ["session:start", "session:end"] * 2


async def test_a_ready_made_coordinator_has_tools_and_a_context() -> None:
    coordinator = create_test_coordinator()
    tools = coordinator.get("tools")
    assert list(tools) == ["echo", "fail"]
    assert all(isinstance(tool, Tool) for tool in tools.values())
    assert (await tools["echo"].execute({"text": "hi"})).output == {"text": "hi"}
    assert tools["echo"].call_count == 1
    assert not (await tools["fail"].execute({})).success
    assert isinstance(coordinator.get("context"), MockContextManager)
    assert coordinator.get_mounted("providers") == {}


async def test_wait_for_returns_when_the_condition_is_true() -> None:
    turns = iter([False, False, True])
    assert await wait_for(lambda: next(turns)) is True


async def test_wait_for_accepts_an_async_condition() -> None:
    async def holds() -> bool:
        return True

    assert await wait_for(holds) is True


async def test_wait_for_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = asyncio.get_running_loop(), 0.0

    async def sleep(delay: float) -> None:
        nonlocal now
        now += delay

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await wait_for(lambda: False, timeout=0.05) is False
    assert now == pytest.approx(0.05, abs=0.011)


def test_mounting_takes_effect_without_await_as_in_a_session() -> None:
    coordinator = MockCoordinator()
    tool = MockTool("look")
    coordinator.mount("tools", tool)
    assert coordinator.get("tools") == {"look": tool}
    assert coordinator.mount_history[0]["module"] is tool
    asyncio.run(coordinator.unmount("tools", "look"))
    assert coordinator.get("tools") == {}
