"""Tools, providers, hooks and contexts as in the samples of their contracts."""

import logging
import os
from typing import Any

import pytest

from amplifier_core.hooks import HookRegistry
from amplifier_core.interfaces import ContextManager, HookHandler, Provider, Tool
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult, ModelInfo, ProviderInfo, ToolResult
from amplifier_core.testing import (
    TestCoordinator,
    create_test_coordinator,
)

# Tool Contract


class MyTool:
    """A tool with a schema that returns every problem as a result."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @property
    def name(self) -> str:
        return "my_tool"

    @property
    def description(self) -> str:
        return "Performs specific action with given parameters."

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "required_param": {"type": "string"},
                "optional_param": {"type": "integer", "default": 10},
            },
            "required": ["required_param"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        try:
            value = input.get("required_param")
            if not value:
                return ToolResult(success=False, error={"message": "required_param is required"})
            return ToolResult(success=True, output=value.upper())
        except Exception as error:
            kind = type(error).__name__
            return ToolResult(success=False, error={"message": str(error), "type": kind})


async def mount_tool(coordinator: Any, config: dict[str, Any]) -> Any:
    tool = MyTool(config=config)
    await coordinator.mount("tools", tool, name="my-tool")
    coordinator.register_contributor(
        "observability.events",
        "my-tool",
        lambda: ["my-tool:started", "my-tool:completed", "my-tool:error"],
    )
    return tool


async def test_a_tool_reports_success_and_failure_in_its_result() -> None:
    tool = MyTool(config={})
    assert isinstance(tool, Tool)
    done = await tool.execute({"required_param": "value"})
    assert done.success
    assert done.error is None
    missing = await tool.execute({})
    assert not missing.success
    assert missing.error == {"message": "required_param is required"}
    wrong = await tool.execute({"required_param": 5})
    assert wrong.error is not None
    assert wrong.error["type"] == "AttributeError"


async def test_a_tool_mounts_under_its_name_and_declares_its_events() -> None:
    coordinator = TestCoordinator()
    tool = await mount_tool(coordinator, {"max_size": 1})
    assert coordinator.get("tools", "my-tool") is tool
    (events,) = await coordinator.collect_contributions("observability.events")
    assert "my-tool:error" in events


# Provider Contract


class Client:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class MyProvider:
    name = "my-provider"

    def __init__(self, api_key: str, config: dict[str, Any]) -> None:
        self.api_key = api_key
        self.config = config
        self.client = Client()

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="my-provider", display_name="Mine")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="hi")])

    def parse_tool_calls(self, response: ChatResponse) -> list[Any]:
        return list(response.tool_calls or [])


async def mount_provider(coordinator: Any, config: dict[str, Any]) -> Any:
    api_key = config.get("api_key") or os.environ.get("MY_OWN_KEY")
    if not api_key:
        logging.getLogger("my_provider").warning("No API key - provider not mounted")
        return None
    provider = MyProvider(api_key=api_key, config=config)
    await coordinator.mount("providers", provider, name="my-provider")

    async def cleanup() -> None:
        await provider.client.close()

    return cleanup


async def test_a_provider_mounts_and_cleans_up() -> None:
    coordinator = create_test_coordinator()
    cleanup = await mount_provider(coordinator, {"api_key": "test-key"})
    assert "my-provider" in coordinator.get_mounted("providers")
    provider = coordinator.get("providers", "my-provider")
    assert isinstance(provider, Provider)
    await cleanup()
    assert provider.client.closed


async def test_a_provider_without_a_key_does_not_mount() -> None:
    coordinator = create_test_coordinator()
    assert await mount_provider(coordinator, {}) is None
    assert coordinator.get_mounted("providers") == {}


# Hook Contract


async def guard(event: str, data: dict[str, Any]) -> HookResult:
    path = (data.get("tool_input") or {}).get("file_path", "")
    if path.startswith("/etc"):
        return HookResult(action="deny", reason="Access denied")
    return HookResult(action="continue")


async def feedback(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult(
        action="inject_context",
        context_injection="Found 3 linting errors...",
        user_message="Linting issues detected",
    )


async def ask(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult(
        action="ask_user",
        approval_prompt="Allow write to production file?",
        approval_default="deny",
    )


async def mount_hook(coordinator: Any, config: dict[str, Any]) -> Any:
    handlers = [
        coordinator.hooks.register("tool:pre", guard, priority=10),
        coordinator.hooks.register("tool:post", feedback, priority=20),
    ]

    def cleanup() -> None:
        for unregister in handlers:
            unregister()

    return cleanup


async def test_a_handler_on_its_own() -> None:
    assert isinstance(guard, HookHandler)
    data = {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}}
    result = await guard("tool:pre", data)
    assert result.action == "deny"
    assert "denied" in (result.reason or "").lower()


async def test_handlers_work_until_they_are_cleaned_up() -> None:
    coordinator = TestCoordinator()
    cleanup = await mount_hook(coordinator, {})
    blocked = {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}}
    assert (await coordinator.hooks.emit("tool:pre", blocked)).action == "deny"
    result = await coordinator.hooks.emit("tool:post", blocked)
    assert (result.action, result.user_message) == ("inject_context", "Linting issues detected")
    cleanup()
    assert (await coordinator.hooks.emit("tool:pre", blocked)).action == "continue"
    assert (await coordinator.hooks.emit("tool:post", blocked)).action == "continue"


async def test_a_handler_registers_by_keyword_and_unregisters() -> None:
    registry: HookRegistry = TestCoordinator().hooks
    unregister = registry.register(event="tool:post", handler=ask, priority=10, name="my_handler")
    result = await registry.emit("tool:post", {})
    assert (result.action, result.approval_default) == ("ask_user", "deny")
    unregister()
    assert (await registry.emit("tool:post", {})).action == "continue"


# Context Contract


class MyContextManager:
    """The contract's context manager: a view of the last messages with complete tool groups."""

    def __init__(
        self,
        max_tokens: int = 100_000,
        compaction_threshold: float = 0.8,
        keep_recent: int = 10,
        hooks: HookRegistry | None = None,
    ) -> None:
        self._max_tokens = max_tokens
        self._compaction_threshold = compaction_threshold
        self._keep_recent = keep_recent
        self._hooks = hooks or HookRegistry()
        self._messages: list[dict[str, Any]] = []
        self._token_count = 0

    async def add_message(self, message: dict[str, Any]) -> None:
        if "role" not in message:
            raise ValueError("Message must have 'role' field")
        self._messages.append(message)
        self._token_count += self._estimate_tokens(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        budget = self._calculate_budget(token_budget, provider)
        if self._token_count <= budget * self._compaction_threshold:
            return list(self._messages)
        counts = {"message_count": len(self._messages), "token_count": self._token_count}
        await self._hooks.emit("context:pre_compact", counts)
        view = self._compacted()
        counts = {
            "message_count": len(view),
            "token_count": sum(self._estimate_tokens(message) for message in view),
        }
        await self._hooks.emit("context:post_compact", counts)
        return view

    def _compacted(self) -> list[dict[str, Any]]:
        start = max(0, len(self._messages) - self._keep_recent)
        while start > 0 and self._messages[start].get("role") == "tool":
            start -= 1
        system = [m for m in self._messages[:start] if m["role"] == "system"]
        return system + self._messages[start:]

    def _calculate_budget(self, token_budget: int | None, provider: Any | None) -> int:
        if token_budget is not None:
            return token_budget
        if provider is not None:
            defaults = provider.get_info().defaults or {}
            window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
            if window and output:
                return window - output - 1000
        return self._max_tokens

    @staticmethod
    def _estimate_tokens(message: dict[str, Any]) -> int:
        return len(str(message.get("content") or "")) // 4

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)
        self._token_count = sum(self._estimate_tokens(m) for m in self._messages)

    async def clear(self) -> None:
        self._messages = []
        self._token_count = 0


TOOL_GROUP: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_123",
                "type": "function",
                "function": {"name": "read_file", "arguments": "{}"},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_123", "content": "File contents..."},
]


async def test_messages_round_trip_and_clear() -> None:
    context = MyContextManager(max_tokens=1000)
    assert isinstance(context, ContextManager)
    await context.add_message({"role": "user", "content": "Hello"})
    await context.add_message({"role": "assistant", "content": "Hi there!"})
    assert len(await context.get_messages_for_request()) == 2
    assert len(await context.get_messages()) == 2
    await context.clear()
    assert await context.get_messages() == []
    with pytest.raises(ValueError, match="role"):
        await context.add_message({"content": "x"})


async def test_compaction_is_a_view_that_keeps_tool_groups_and_emits_events() -> None:
    emitted: list[tuple[str, int]] = []
    hooks = HookRegistry()
    for event in ("context:pre_compact", "context:post_compact"):
        hooks.register(event, lambda e, d: emitted.append((e, d["message_count"])))
    context = MyContextManager(
        max_tokens=100, compaction_threshold=0.5, keep_recent=50, hooks=hooks
    )
    await context.add_message({"role": "system", "content": "Rules"})
    for message in TOOL_GROUP:
        await context.add_message(message)
    for index in range(49):
        await context.add_message({"role": "user", "content": f"Message {index}"})
    view = await context.get_messages_for_request()
    assert [message["role"] for message in view[:3]] == ["system", "assistant", "tool"]
    assert len(view) == 52
    assert len(await context.get_messages()) == 52
    await context.add_message({"role": "user", "content": "one more"})
    view = await context.get_messages_for_request()
    assert not any(message["role"] == "tool" for message in view)
    assert len(view) == 51
    assert len(await context.get_messages()) == 53
    assert emitted == [
        ("context:pre_compact", 52),
        ("context:post_compact", 52),
        ("context:pre_compact", 53),
        ("context:post_compact", 51),
    ]


async def test_the_budget_is_derived_from_the_provider() -> None:
    class Wide(MyProvider):
        def get_info(self) -> ProviderInfo:
            defaults = {"context_window": 9000, "max_output_tokens": 1000}
            return ProviderInfo(id="w", display_name="W", defaults=defaults)

    context = MyContextManager(max_tokens=10)
    assert context._calculate_budget(5, Wide("k", {})) == 5
    assert context._calculate_budget(None, Wide("k", {})) == 7000
    assert context._calculate_budget(None, MyProvider("k", {})) == 10


async def test_a_saved_conversation_can_be_restored() -> None:
    context = MyContextManager(max_tokens=1000)
    saved = [
        {"role": "user", "content": "Previous conversation"},
        {"role": "assistant", "content": "Previous response"},
    ]
    await context.set_messages(saved)
    messages = await context.get_messages()
    assert messages == saved
    assert messages is not saved


async def test_a_context_with_its_own_file_ignores_the_apps_copy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FileContext(MyContextManager):
        loaded_from_file = True

        async def set_messages(self, messages: list[dict[str, Any]]) -> None:
            if self.loaded_from_file:
                logging.getLogger("ctx").info("Ignoring set_messages - loaded from file")
                return
            await super().set_messages(messages)

    context = FileContext()
    await context.add_message({"role": "system", "content": "kept"})
    await context.set_messages([{"role": "user", "content": "filtered"}])
    assert await context.get_messages() == [{"role": "system", "content": "kept"}]
    context.loaded_from_file = False
    await context.set_messages([{"role": "user", "content": "fresh"}])
    assert await context.get_messages() == [{"role": "user", "content": "fresh"}]


async def test_a_context_mounts_in_the_form_of_the_contract() -> None:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        context = MyContextManager(max_tokens=config.get("max_tokens", 100_000))
        await coordinator.mount("session", context, name="context")
        return context

    coordinator = TestCoordinator()
    context = await mount(coordinator, {"max_tokens": 5})
    assert coordinator.get("context") is context
