"""Loops as in the samples of the Orchestrator Contract run on the kernel and its models.

They send plain dictionaries, read answers and calls by subscript, and know nothing of ids,
budgets or cancellation.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from amplifier_core.hooks import HookRegistry
from amplifier_core.interfaces import Orchestrator
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall, ToolCallBlock
from amplifier_core.models import HookResult, ToolResult
from amplifier_core.testing import MockContextManager, MockProvider, MockTool, TestCoordinator


def says(text: str) -> ChatResponse:
    return ChatResponse(content=[TextBlock(text=text)])


def calls(name: str, **arguments: Any) -> ChatResponse:
    return ChatResponse(
        content=[ToolCallBlock(id="c1", name=name, input=arguments)],
        tool_calls=[ToolCall(id="c1", name=name, arguments=arguments)],
    )


class Provider(MockProvider):
    """Returns scripted answers and records the requests."""

    def __init__(self, *answers: ChatResponse) -> None:
        super().__init__("scripted")
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.complete = self._complete

    async def _complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        self.requests.append(request)
        return self.answers.pop(0)

    async def stream_complete(self, request: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield {"type": "content_block_delta", "index": 0, "block_type": "text", "delta": "…"}
        yield await self._complete(request)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


class Loop:
    """The contract's loop; `streaming` requests chunks instead of complete answers."""

    name = "basic"
    streaming = False

    def __init__(self, config: dict[str, Any]) -> None:
        self.max_iterations = config.get("max_iterations", 10)

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any
    ) -> str:
        await hooks.emit("prompt:submit", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        for iteration in range(self.max_iterations):
            messages = await context.get_messages_for_request(provider=provider)
            await hooks.emit("provider:request", {"messages": messages, "iteration": iteration})
            response = await self.ask(provider, {"messages": messages}, hooks)
            usage = response.get("usage", {})
            await hooks.emit("provider:response", {"response": response, "usage": usage})
            await context.add_message({"role": "assistant", "content": response["content"]})
            wanted = provider.parse_tool_calls(response)
            if not wanted:
                text = self.read_text(response)
                await hooks.emit("prompt:complete", {"response": text})
                data = {"orchestrator": self.name, "turn_count": iteration + 1, "status": "success"}
                await hooks.emit("orchestrator:complete", data)
                return text
            for call in wanted:
                await self.call(call, tools, context, hooks)
        return "Max iterations reached"

    async def ask(self, provider: Any, request: dict[str, Any], hooks: Any) -> Any:
        if not self.streaming:
            return await provider.complete(request)
        response = None
        async for chunk in provider.stream_complete(request):
            await hooks.emit("provider:stream", {"chunk": chunk})
            response = chunk
        return response

    async def call(self, call: Any, tools: Any, context: Any, hooks: Any) -> None:
        tool = tools.get(call["name"])
        if not tool:
            return
        await hooks.emit("tool:pre", {"tool_name": call["name"], "input": call["input"]})
        result = await tool.execute(call["input"])
        await hooks.emit("tool:post", {"tool_name": call["name"], "result": result})
        await context.add_message(
            {"role": "tool", "tool_call_id": call["id"], "content": result.get_serialized_output()}
        )

    def read_text(self, response: Any) -> str:
        for block in response.get("content", []):
            if block.get("type") == "text":
                return block.get("text", "")
        return ""


class StreamingLoop(Loop):
    name = "streaming"
    streaming = True


EVENTS = [
    "prompt:submit",
    "provider:request",
    "provider:stream",
    "provider:response",
    "tool:pre",
    "tool:post",
    "prompt:complete",
    "orchestrator:complete",
]


@pytest.mark.parametrize("kind", [Loop, StreamingLoop])
async def test_a_turn_with_a_tool(kind: type[Loop]) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    hooks = HookRegistry()
    for event in EVENTS:
        hooks.register(event, lambda e, d: seen.append((e, dict(d))))
    provider = Provider(calls("echo", text="a"), says("done"))
    tool = MockTool(name="echo", description="Echo", return_value="mock result")
    context = MockContextManager()
    loop = kind({})
    assert isinstance(loop, Orchestrator)
    result = await loop.execute(
        prompt="go",
        context=context,
        providers={"test": provider},
        tools={"echo": tool},
        hooks=hooks,
    )
    assert result == "done"
    assert tool.call_count == 1
    assert tool.last_input == {"text": "a"}
    roles = [message["role"] for message in context.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert context.messages[2]["content"] == "mock result"
    stream = ["provider:stream"] * 2 if kind is StreamingLoop else []
    assert [event for event, _ in seen] == [
        "prompt:submit",
        "provider:request",
        *stream,
        "provider:response",
        "tool:pre",
        "tool:post",
        "provider:request",
        *stream,
        "provider:response",
        "prompt:complete",
        "orchestrator:complete",
    ]
    final = {"orchestrator": loop.name, "turn_count": 2, "status": "success"}
    assert final.items() <= seen[-1][1].items()


async def guarded(tool: MockTool, call: ToolCall, hooks: HookRegistry, context: Any) -> ToolResult:
    """Hook processing as in the contract: deny, modify, inject, ask."""
    data: dict[str, Any] = {"tool_name": call.name, "tool_input": call.input}
    before = await hooks.emit("tool:pre", data)
    if before.action == "deny":
        return ToolResult(is_error=True, output=before.reason)  # type: ignore[call-arg]
    if before.action == "modify":
        assert before.data is not None
        data = before.data
    if before.action == "inject_context":
        await context.add_message(
            {"role": before.context_injection_role, "content": before.context_injection}
        )
    if before.action == "ask_user":
        return ToolResult(is_error=True, output="User denied")  # type: ignore[call-arg]
    result = await tool.execute(data["tool_input"])
    await hooks.emit("tool:post", {**data, "tool_result": result})
    return result


@pytest.mark.parametrize(
    ("answer", "success", "output", "ran_with"),
    [
        (HookResult(), True, "ran", {"a": 1}),
        (HookResult(action="deny", reason="no"), False, "no", None),
        (
            HookResult(action="modify", data={"tool_name": "t", "tool_input": {"a": 2}}),
            True,
            "ran",
            {"a": 2},
        ),
        (HookResult(action="inject_context", context_injection="hint"), True, "ran", {"a": 1}),
        (HookResult(action="ask_user", approval_prompt="?"), False, "User denied", None),
    ],
)
async def test_every_result_of_a_hook_can_be_handled(
    answer: HookResult, success: bool, output: str, ran_with: Any
) -> None:
    hooks, context, tool = HookRegistry(), MockContextManager(), MockTool("t", return_value="ran")
    hooks.register("tool:pre", lambda e, d: answer)
    result = await guarded(tool, ToolCall(id="1", name="t", arguments={"a": 1}), hooks, context)
    assert (result.success, result.output) == (success, output)
    assert tool.last_input == ran_with
    injected = [message["content"] for message in context.messages]
    assert injected == (["hint"] if answer.action == "inject_context" else [])


async def test_a_loop_mounts_in_either_form_and_declares_its_events() -> None:
    async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
        config = config or {}
        coordinator.register_contributor(
            "observability.events", "my-loop", lambda: ["my-loop:started"]
        )
        await coordinator.mount("session", Loop(config), name="orchestrator")

    coordinator = TestCoordinator()
    await mount(coordinator)
    assert isinstance(coordinator.get("orchestrator"), Loop)
    assert await coordinator.collect_contributions("observability.events") == [["my-loop:started"]]
