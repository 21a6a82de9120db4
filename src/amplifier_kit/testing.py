"""Test doubles for module authors: a coordinator, a tool, a context, a provider, a loop, a recorder.

``TestCoordinator`` and ``MockCoordinator`` are one class under two names (Tool Contract, Testing).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar
from unittest.mock import AsyncMock, Mock

from amplifier_core.coordinator import DetachedSession, ModuleCoordinator
from amplifier_core.loader import ModuleLoader
from amplifier_core.message_models import ChatResponse, TextBlock, ToolCall, Usage
from amplifier_core.models import HookResult, ModelInfo, ProviderInfo, ToolResult

__all__ = [
    "EventRecorder",
    "MockContextManager",
    "MockCoordinator",
    "MockProvider",
    "MockTool",
    "ScriptedOrchestrator",
    "TestCoordinator",
    "create_test_coordinator",
    "wait_for",
]

_POLL_SECONDS = 0.01


class MockCoordinator(ModuleCoordinator):
    """A real coordinator, of the session ``test-session``, that also records mounts and unmounts.

    Attributes:
        mount_history: one dict with ``mount_point``, ``module`` and ``name`` per mount, in order.
        unmount_history: one dict with ``mount_point`` and ``name`` per unmount, in order.
        approval_system: an ``AsyncMock`` that returns "Deny".
        loader: a ``ModuleLoader`` of installed modules.
        display_system: an ``AsyncMock`` whose ``show_message`` is a plain ``Mock``.
    """

    # pytest would collect the class because its other name starts with "Test".
    __test__ = False

    def __init__(self) -> None:
        session = DetachedSession(
            session_id="test-session",
            config={"session": {"orchestrator": "mock-orchestrator", "context": "mock-context"}},
        )
        super().__init__(session)
        # Mocks cost more than all else here, and few tests use them.
        del self.approval_system, self.display_system
        self.loader = ModuleLoader(self)
        self.mount_history: list[dict[str, Any]] = []
        self.unmount_history: list[dict[str, Any]] = []

    @cached_property
    def approval_system(self) -> Any:
        approval = AsyncMock()
        approval.request_approval.return_value = "Deny"
        return approval

    @cached_property
    def display_system(self) -> Any:
        display = AsyncMock()
        display.show_message = Mock(return_value=None)
        return display

    def mount(self, mount_point: str, module: Any, name: str | None = None) -> Any:
        """Mount like :meth:`ModuleCoordinator.mount` and record it."""
        done = super().mount(mount_point, module, name)
        self.mount_history.append({"mount_point": mount_point, "module": module, "name": name})
        return done

    def unmount(self, mount_point: str, name: str | None = None) -> Any:
        """Unmount like :meth:`ModuleCoordinator.unmount` and record it."""
        done = super().unmount(mount_point, name)
        self.unmount_history.append({"mount_point": mount_point, "name": name})
        return done


TestCoordinator = MockCoordinator


class MockTool:
    """A tool that always returns the same result.

    Args:
        name: name of the tool.
        output: its result; a ``ToolResult`` is returned unchanged, any other value as the output of
            a successful result.
        description: description of the tool.
        return_value: alias of ``output``; takes precedence.

    Attributes:
        execute: an ``AsyncMock``, for assertions.
        call_count: number of executions.
        last_input: input of the last execution; None before the first.
    """

    def __init__(
        self,
        name: str = "mock_tool",
        output: Any = "Success",
        description: str = "A tool for tests",
        *,
        return_value: Any = None,
    ) -> None:
        self.name = name
        self.description = description
        self.output = output if return_value is None else return_value
        self.input_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.call_count = 0
        self.last_input: dict[str, Any] | None = None
        self.execute = AsyncMock(side_effect=self._answer)

    async def _answer(self, input: dict[str, Any]) -> ToolResult:
        self.call_count += 1
        self.last_input = input
        output = self.output
        return output if isinstance(output, ToolResult) else ToolResult(success=True, output=output)


class MockContextManager:
    """A context that stores messages in the list ``messages``. Its methods are ``AsyncMock``s."""

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages: list[dict[str, Any]] = [] if messages is None else messages
        self.add_message = AsyncMock(side_effect=self._add)
        self.get_messages = AsyncMock(side_effect=self._all)
        self.get_messages_for_request = AsyncMock(side_effect=self._copy)
        self.set_messages = AsyncMock(side_effect=self._set)
        self.get_token_count = AsyncMock(side_effect=self._count)
        self.clear = AsyncMock(side_effect=self._clear)

    async def _add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    async def _all(self) -> list[dict[str, Any]]:
        return self.messages

    async def _copy(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[dict[str, Any]]:
        return list(self.messages)

    async def _set(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    async def _count(self) -> int:
        return sum(len(str(message.get("content", ""))) // 4 for message in self.messages)

    async def _clear(self) -> None:
        self.messages = []

    def _should_compact(self) -> bool:
        return False

    async def _compact_internal(self) -> None:
        """Do nothing: a mock never compacts."""


class MockProvider:
    """A provider that answers every request with the same text block.

    Attributes:
        complete: an ``AsyncMock``, for assertions or another ``return_value``.
    """

    priority: ClassVar[int] = 100

    def __init__(self, name: str = "mock", text: str = "Mock response") -> None:
        self.name = name
        self.complete = AsyncMock(
            return_value=ChatResponse(
                content=[TextBlock(text=text)],
                usage=Usage(input_tokens=1, output_tokens=1, total_tokens=2),
                finish_reason="stop",
            )
        )

    def get_info(self) -> ProviderInfo:
        """Description of the provider and the window of its model."""
        return ProviderInfo(
            id=self.name,
            display_name="Mock provider",
            defaults={"context_window": 100_000, "max_output_tokens": 4_096},
        )

    async def list_models(self) -> list[ModelInfo]:
        """The only model."""
        return [
            ModelInfo(
                id="mock-model",
                display_name="Mock model",
                context_window=100_000,
                max_output_tokens=4_096,
            )
        ]

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls of ``response``."""
        return list(response.tool_calls or ())


class EventRecorder:
    """Records events, as a replacement for a hook registry or as a handler.

    Attributes:
        events: ``(event, data)`` pairs in order, the data copied one level deep.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def emit(self, event: str, data: dict[str, Any] | None = None) -> HookResult:
        """Record an event; returns ``continue`` with its data."""
        kept = dict(data or {})
        self.events.append((event, kept))
        return HookResult(action="continue", data=dict(kept))

    async def record(self, event: str, data: dict[str, Any] | None = None) -> HookResult:
        """Record an event, as a handler: ``hooks.register("tool:pre", recorder.record)``."""
        return await self.emit(event, data)

    def clear(self) -> None:
        """Remove all recorded events."""
        self.events.clear()

    def get_events(self, event_type: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """All events, or those with one name, in order."""
        return [entry for entry in self.events if event_type in (None, entry[0])]


class ScriptedOrchestrator:
    """An orchestrator without provider calls: it returns the given texts in order, then "DONE".

    Attributes:
        call_count: number of executions.
    """

    def __init__(self, responses: Sequence[str]) -> None:
        self.responses = list(responses)
        self.call_count = 0

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, **kwargs: Any
    ) -> str:
        """Emit ``session:start``, store prompt and answer, emit ``session:end``."""
        position, self.call_count = self.call_count, self.call_count + 1
        answer = self.responses[position] if position < len(self.responses) else "DONE"
        await hooks.emit("session:start", {"prompt": prompt})
        await context.add_message({"role": "user", "content": prompt})
        await context.add_message({"role": "assistant", "content": answer})
        await hooks.emit("session:end", {"response": answer})
        return answer


class _EchoTool(MockTool):
    """Returns its input."""

    def __init__(self) -> None:
        super().__init__("echo", description="Return the input")

    async def _answer(self, input: dict[str, Any]) -> ToolResult:
        self.output = input
        return await super()._answer(input)


def create_test_coordinator() -> MockCoordinator:
    """A coordinator with a ``MockContextManager`` and two tools: ``echo``, and ``fail``, which always fails."""
    coordinator = MockCoordinator()
    failure = ToolResult(success=False, error={"message": "This tool always fails"})
    fail = MockTool("fail", failure, "Always fail")
    # Written directly to the mount points, so that `mount_history` stays empty.
    coordinator.mount_points["tools"].update(echo=_EchoTool(), fail=fail)
    coordinator.mount_points["context"] = MockContextManager()
    return coordinator


async def wait_for(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 1.0) -> bool:
    """Poll ``condition`` (sync or async) about every 10 ms until it holds or ``timeout`` seconds passed.

    Returns:
        Whether it held in time.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return True
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
