"""Tools, providers, hooks and contexts as in the samples of their contracts."""

from typing import Any

from amplifier_core.hooks import HookRegistry
from amplifier_core.interfaces import ContextManager, HookHandler, Provider, Tool
from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookResult, ModelInfo, ProviderInfo, ToolResult
from amplifier_core.testing import TestCoordinator, create_test_coordinator


class MyTool:
    """A tool with a schema, whose name and description are properties."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @property
    def name(self) -> str:
        return "my_tool"

    @property
    def description(self) -> str:
        return "Performs specific action with given parameters."

    def get_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"required_param": {"type": "string"}}}

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        return ToolResult(success=True, output=input["required_param"].upper())


async def test_a_tool_mounts_under_its_name_and_declares_its_events() -> None:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        tool = MyTool(config=config)
        await coordinator.mount("tools", tool, name="my-tool")
        coordinator.register_contributor(
            "observability.events", "my-tool", lambda: ["my-tool:started", "my-tool:error"]
        )
        return tool

    coordinator = TestCoordinator()
    tool = await mount(coordinator, {"max_size": 1})
    assert isinstance(tool, Tool)
    assert coordinator.get("tools", "my-tool") is tool
    assert (await tool.execute({"required_param": "value"})).output == "VALUE"
    (events,) = await coordinator.collect_contributions("observability.events")
    assert "my-tool:error" in events


class MyProvider:
    name = "my-provider"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="my-provider", display_name="Mine")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(content=[TextBlock(text="hi")])

    def parse_tool_calls(self, response: ChatResponse) -> list[Any]:
        return list(response.tool_calls or [])


async def test_a_provider_mounts() -> None:
    coordinator, provider = create_test_coordinator(), MyProvider()
    assert isinstance(provider, Provider)
    await coordinator.mount("providers", provider, name="my-provider")
    assert coordinator.get_mounted("providers") == {"my-provider": provider}


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


async def test_handlers_work_until_they_are_unregistered() -> None:
    assert isinstance(guard, HookHandler)
    registry: HookRegistry = TestCoordinator().hooks
    handlers = [
        registry.register("tool:pre", guard, priority=10),
        registry.register(event="tool:post", handler=feedback, priority=20, name="feedback"),
    ]
    blocked = {"tool_name": "Write", "tool_input": {"file_path": "/etc/passwd"}}
    assert (await registry.emit("tool:pre", blocked)).action == "deny"
    result = await registry.emit("tool:post", blocked)
    assert (result.action, result.user_message) == ("inject_context", "Linting issues detected")
    for unregister in handlers:
        unregister()
    assert (await registry.emit("tool:pre", blocked)).action == "continue"
    assert (await registry.emit("tool:post", blocked)).action == "continue"


class MyContextManager:
    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._messages: list[dict[str, Any]] = []

    async def add_message(self, message: dict[str, Any]) -> None:
        self._messages.append(message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        return list(self._messages)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)

    async def clear(self) -> None:
        self._messages = []


async def test_a_context_mounts_in_the_form_of_the_contract() -> None:
    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        context = MyContextManager(max_tokens=config.get("max_tokens", 100_000))
        await coordinator.mount("session", context, name="context")
        return context

    coordinator = TestCoordinator()
    context = await mount(coordinator, {"max_tokens": 5})
    assert isinstance(context, ContextManager)
    assert coordinator.get("context") is context
