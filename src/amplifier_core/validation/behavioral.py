"""Behavioural suites: a module's own tests inherit one to have the module exercised for real.

    from amplifier_core.validation.behavioral import ToolBehaviorTests

    class TestBehavior(ToolBehaviorTests):
        pass

The fixtures come from ``amplifier_core.pytest_plugin``; without a module under test everything skips.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_args

import pytest

from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookAction, HookResult, ProviderInfo, ToolResult
from amplifier_core.testing import MockCoordinator

__all__ = [
    "ContextBehaviorTests",
    "HookBehaviorTests",
    "OrchestratorBehaviorTests",
    "ProviderBehaviorTests",
    "ToolBehaviorTests",
]

_PROMPT = "Say hello."

# What code raises by mistake, as opposed to what it raises on purpose.
_MISTAKES = (AttributeError, TypeError, KeyError)


@pytest.mark.asyncio
class ProviderBehaviorTests:
    """What every provider does before its service is asked to answer anything."""

    module_kind: ClassVar[str] = "provider"

    async def test_mount_succeeds(self, provider_module: Any) -> None:
        assert provider_module is not None

    async def test_get_info_returns_valid_provider_info(self, provider_module: Any) -> None:
        info = provider_module.get_info()
        assert isinstance(info, ProviderInfo)
        assert info.id
        assert info.display_name

    async def test_list_models_returns_list(self, provider_module: Any) -> None:
        try:
            models = await provider_module.list_models()
        except _MISTAKES:
            raise
        except Exception as error:
            # Whether the service can be asked from here is not the module's doing.
            pytest.skip(f"the service gave no list of models: {type(error).__name__}: {error}")
        assert isinstance(models, list)

    async def test_provider_has_name_attribute(self, provider_module: Any) -> None:
        assert isinstance(provider_module.name, str)
        assert provider_module.name

    async def test_parse_tool_calls_returns_list(self, provider_module: Any) -> None:
        response = ChatResponse(content=[TextBlock(text="No tools needed.")])
        assert isinstance(provider_module.parse_tool_calls(response), list)


@pytest.mark.asyncio
class ToolBehaviorTests:
    """What every tool does with input it was not made for: answer, not crash."""

    module_kind: ClassVar[str] = "tool"

    async def test_mount_succeeds(self, tool_module: Any) -> None:
        assert tool_module is not None

    async def test_tool_has_name(self, tool_module: Any) -> None:
        assert isinstance(tool_module.name, str)
        assert tool_module.name

    async def test_tool_has_description(self, tool_module: Any) -> None:
        assert isinstance(tool_module.description, str)
        assert tool_module.description

    async def test_tool_has_execute_method(self, tool_module: Any) -> None:
        assert callable(tool_module.execute)

    async def test_execute_returns_tool_result(self, tool_module: Any) -> None:
        assert isinstance(await tool_module.execute({"_tool_call_id": "test-call"}), ToolResult)

    async def test_tool_result_has_required_fields(self, tool_module: Any) -> None:
        result = await tool_module.execute({"_tool_call_id": "test-call"})
        assert isinstance(result, ToolResult)
        assert isinstance(result.success, bool)
        assert result.error is None or isinstance(result.error, dict)

    async def test_invalid_input_returns_error_result(self, tool_module: Any) -> None:
        try:
            result = await tool_module.execute({})
        except _MISTAKES as error:
            pytest.fail(
                f"empty input is not handled: {type(error).__name__}: {error};"
                " return ToolResult(success=False, error={'message': ...})"
            )
        except Exception:
            # The tool refused on purpose, with an error of its own choice.
            return
        assert isinstance(result, ToolResult)


@pytest.mark.asyncio
class HookBehaviorTests:
    """What every hook does with the events it listens to."""

    module_kind: ClassVar[str] = "hook"

    async def test_mount_succeeds(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        assert coordinator.hooks is not None

    async def test_handler_returns_hook_result(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        event = _event_of(coordinator)
        result = await coordinator.hooks.emit(event, {"tool_name": "test", "tool_input": {}})
        assert isinstance(result, HookResult)

    async def test_hook_result_has_valid_action(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        event = _event_of(coordinator)
        result = await coordinator.hooks.emit(event, {"tool_name": "test", "tool_input": {}})
        assert result.action in get_args(HookAction)

    async def test_cleanup_is_callable_if_present(
        self, hook_cleanup: Callable[[], Any] | None
    ) -> None:
        assert hook_cleanup is None or callable(hook_cleanup)

    async def test_cleanup_does_not_raise(self, hook_cleanup: Callable[[], Any] | None) -> None:
        if hook_cleanup is not None:
            pending = hook_cleanup()
            if inspect.isawaitable(pending):
                await pending

    async def test_handler_does_not_crash_on_malformed_data(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        assert isinstance(await coordinator.hooks.emit(_event_of(coordinator), None), HookResult)

    async def test_handler_does_not_crash_on_empty_data(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        assert isinstance(await coordinator.hooks.emit(_event_of(coordinator), {}), HookResult)


def _event_of(coordinator: MockCoordinator) -> str:
    """An event that somebody listens to: ``tool:pre`` for preference."""
    listened = [event for event, names in coordinator.hooks.list_handlers().items() if names]
    return "tool:pre" if "tool:pre" in listened or not listened else listened[0]


@pytest.mark.asyncio
class OrchestratorBehaviorTests:
    """What every orchestrator does with one prompt and a provider that answers it."""

    module_kind: ClassVar[str] = "orchestrator"

    async def test_mount_succeeds(self, orchestrator_module: Any) -> None:
        assert orchestrator_module is not None

    async def test_orchestrator_has_execute_method(self, orchestrator_module: Any) -> None:
        assert callable(orchestrator_module.execute)

    async def test_execute_returns_string(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        answer = await _execute(orchestrator_module, _PROMPT, mock_deps)
        assert isinstance(answer, str)
        assert answer

    async def test_execute_with_empty_prompt(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        try:
            answer = await _execute(orchestrator_module, "", mock_deps)
        except ValueError:
            # Orchestrator Contract, Validation: an empty prompt may be refused.
            return
        assert isinstance(answer, str)

    async def test_orchestrator_uses_provider(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        await _execute(orchestrator_module, _PROMPT, mock_deps)
        assert mock_deps[1]["default"].complete.await_count > 0

    async def test_orchestrator_updates_context(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        await _execute(orchestrator_module, _PROMPT, mock_deps)
        assert mock_deps[0].messages


async def _execute(orchestrator: Any, prompt: str, mock_deps: tuple[Any, ...]) -> Any:
    context, providers, tools, hooks = mock_deps
    return await orchestrator.execute(
        prompt=prompt, context=context, providers=providers, tools=tools, hooks=hooks
    )


@pytest.mark.asyncio
class ContextBehaviorTests:
    """What every context manager does with the messages it is given."""

    module_kind: ClassVar[str] = "context"

    async def test_mount_succeeds(self, context_module: Any) -> None:
        assert context_module is not None

    async def test_context_has_required_methods(self, context_module: Any) -> None:
        for name in ("add_message", "get_messages", "clear"):
            assert callable(getattr(context_module, name, None)), f"{name} is missing"

    async def test_message_round_trip(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        assert "Hello" in _contents(await context_module.get_messages())

    async def test_multiple_messages(self, context_module: Any) -> None:
        texts = ["first", "second", "third"]
        for text in texts:
            await context_module.add_message({"role": "user", "content": text})
        contents = _contents(await context_module.get_messages())
        assert [content for content in contents if content in texts] == texts

    async def test_clear_removes_messages(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Forget this"})
        await context_module.clear()
        assert "Forget this" not in _contents(await context_module.get_messages())

    async def test_get_messages_for_request_returns_messages(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        messages = await context_module.get_messages_for_request()
        assert isinstance(messages, list)
        assert "Hello" in _contents(messages)

    async def test_internal_should_compact_returns_bool(self, context_module: Any) -> None:
        should_compact = _without_arguments(context_module, "_should_compact")
        if should_compact is not None:
            assert isinstance(await _awaited(should_compact()), bool)

    async def test_internal_compact_does_not_crash(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        compact = _without_arguments(context_module, "_compact_internal")
        if compact is not None:
            await _awaited(compact())

    async def test_add_invalid_message_does_not_crash(self, context_module: Any) -> None:
        try:
            await context_module.add_message({})
        except (ValueError, TypeError, KeyError):
            # Context Contract, add_message: what has no role may be refused.
            return
        assert await context_module.get_messages() is not None

    async def test_get_messages_never_returns_none(self, context_module: Any) -> None:
        assert await context_module.get_messages() is not None
        await context_module.clear()
        assert await context_module.get_messages() is not None


def _contents(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages if "content" in message]


def _without_arguments(instance: object, name: str) -> Callable[[], Any] | None:
    """A private method of ``instance``, if it is there and needs no arguments to be called."""
    method = getattr(instance, name, None)
    if not callable(method):
        return None
    try:
        inspect.signature(method).bind()
    except TypeError:
        return None
    return method


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
