"""Test suites that a module's tests inherit from: a structural one runs its validator, a behavioural one the module.

    from amplifier_core.validation.behavioral import ToolBehaviorTests
    from amplifier_core.validation.structural import ToolStructuralTests

    class TestStructure(ToolStructuralTests):
        pass

    class TestBehavior(ToolBehaviorTests):
        pass

The fixtures come from ``amplifier_core.pytest_plugin``; without a module under test, all tests are skipped.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from amplifier_core.message_models import ChatResponse, TextBlock
from amplifier_core.models import HookAction, HookResult, ProviderInfo, ToolResult
from amplifier_kit.testing import MockCoordinator
from amplifier_kit.validation.validators import VALIDATORS

NO_MODULE = "no module under test: pass --module-path, or declare it in pyproject.toml under amplifier.modules"


class _StructuralSuite:
    module_kind: ClassVar[str]

    @pytest.mark.asyncio
    async def test_structural_validation(self, module_path: Path | None) -> None:
        """The module passes the validator of its kind."""
        if module_path is None:
            pytest.skip(NO_MODULE)
        result = await VALIDATORS[self.module_kind]().validate(module_path)
        if not result.passed:
            errors = "\n".join(f"  {check.name}: {check.message}" for check in result.errors)
            pytest.fail(f"{result.summary()}\n{errors}", pytrace=False)


class ProviderStructuralTests(_StructuralSuite):
    """The structure of a provider."""

    module_kind = "provider"


class ToolStructuralTests(_StructuralSuite):
    """The structure of a tool."""

    module_kind = "tool"


class HookStructuralTests(_StructuralSuite):
    """The structure of a hook."""

    module_kind = "hook"


class OrchestratorStructuralTests(_StructuralSuite):
    """The structure of an orchestrator."""

    module_kind = "orchestrator"


class ContextStructuralTests(_StructuralSuite):
    """The structure of a context manager."""

    module_kind = "context"


_PROMPT = "Say hello."

# Exceptions that usually indicate a bug rather than an intended error.
_MISTAKES = (AttributeError, TypeError, KeyError)


def _expect(value: object, kind: type, what: str) -> None:
    message = f"{what} is {type(value).__name__}, not {kind.__name__}"
    assert isinstance(value, kind), message


def _expect_text(value: object, what: str) -> None:
    _expect(value, str, what)
    assert value, f"{what} is empty"


@pytest.mark.asyncio
class ProviderBehaviorTests:
    """Behaviour of every provider, without model calls."""

    module_kind: ClassVar[str] = "provider"

    async def test_mount_succeeds(self, provider_module: Any) -> None:
        assert provider_module is not None

    async def test_get_info_returns_valid_provider_info(self, provider_module: Any) -> None:
        info = provider_module.get_info()
        _expect(info, ProviderInfo, "the return value of get_info()")
        _expect_text(info.id, "the id in get_info()")
        _expect_text(info.display_name, "the display_name in get_info()")

    async def test_list_models_returns_list(self, provider_module: Any) -> None:
        try:
            models = await provider_module.list_models()
        except _MISTAKES:
            raise
        except Exception as error:
            # The service may be unreachable from here, which is not the module's fault.
            pytest.skip(f"the service did not list its models: {type(error).__name__}: {error}")
        _expect(models, list, "the return value of list_models()")

    async def test_provider_has_name_attribute(self, provider_module: Any) -> None:
        _expect_text(provider_module.name, "the provider's name")

    async def test_parse_tool_calls_returns_list(self, provider_module: Any) -> None:
        response = ChatResponse(content=[TextBlock(text="No tools needed.")])
        calls = provider_module.parse_tool_calls(response)
        _expect(calls, list, "the return value of parse_tool_calls()")


@pytest.mark.asyncio
class ToolBehaviorTests:
    """Behaviour of every tool with unexpected input: return a result, do not crash."""

    module_kind: ClassVar[str] = "tool"

    async def test_mount_succeeds(self, tool_module: Any) -> None:
        assert tool_module is not None

    async def test_tool_has_name(self, tool_module: Any) -> None:
        _expect_text(tool_module.name, "the tool's name")

    async def test_tool_has_description(self, tool_module: Any) -> None:
        _expect_text(tool_module.description, "the tool's description")

    async def test_tool_has_execute_method(self, tool_module: Any) -> None:
        assert callable(tool_module.execute), "the tool's execute is not callable"

    async def test_execute_returns_tool_result(self, tool_module: Any) -> None:
        result = await tool_module.execute({"_tool_call_id": "test-call"})
        _expect(result, ToolResult, "the return value of execute()")

    async def test_tool_result_has_required_fields(self, tool_module: Any) -> None:
        result = await tool_module.execute({"_tool_call_id": "test-call"})
        _expect(result, ToolResult, "the return value of execute()")
        _expect(result.success, bool, "the result's success")
        if result.error is not None:
            _expect(result.error, dict, "the result's error")

    async def test_invalid_input_returns_error_result(self, tool_module: Any) -> None:
        try:
            result = await tool_module.execute({})
        except _MISTAKES as error:
            pytest.fail(
                f"empty input is not handled: {type(error).__name__}: {error};"
                " return ToolResult(success=False, error={'message': ...})"
            )
        except Exception:
            # The tool rejected the input on purpose.
            return
        _expect(result, ToolResult, "the return value of execute() for an empty input")


@pytest.mark.asyncio
class HookBehaviorTests:
    """Behaviour of every hook with the events it listens to."""

    module_kind: ClassVar[str] = "hook"

    async def test_mount_succeeds(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        assert coordinator.hooks is not None

    async def test_handler_returns_hook_result(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        event = _find_event(coordinator)
        result = await coordinator.hooks.emit(event, {"tool_name": "test", "tool_input": {}})
        _expect(result, HookResult, f"the result of {event}")

    async def test_hook_result_has_valid_action(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        event = _find_event(coordinator)
        result = await coordinator.hooks.emit(event, {"tool_name": "test", "tool_input": {}})
        assert result.action in get_args(HookAction), f"unknown action {result.action!r}"

    async def test_cleanup_is_callable_if_present(
        self, hook_cleanup: Callable[[], Any] | None
    ) -> None:
        assert hook_cleanup is None or callable(hook_cleanup), "the cleanup is not callable"

    async def test_cleanup_does_not_raise(self, hook_cleanup: Callable[[], Any] | None) -> None:
        if hook_cleanup is not None:
            pending = hook_cleanup()
            if inspect.isawaitable(pending):
                await pending

    async def test_handler_does_not_crash_on_malformed_data(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        result = await coordinator.hooks.emit(_find_event(coordinator), None)
        _expect(result, HookResult, "the result of an event without data")

    async def test_handler_does_not_crash_on_empty_data(
        self, hook_cleanup: Callable[[], Any] | None, coordinator: MockCoordinator
    ) -> None:
        result = await coordinator.hooks.emit(_find_event(coordinator), {})
        _expect(result, HookResult, "the result of an event with empty data")


def _find_event(coordinator: MockCoordinator) -> str:
    """An event that has handlers, preferably ``tool:pre``."""
    listened = [event for event, names in coordinator.hooks.list_handlers().items() if names]
    return "tool:pre" if "tool:pre" in listened or not listened else listened[0]


@pytest.mark.asyncio
class OrchestratorBehaviorTests:
    """Behaviour of every orchestrator with one prompt and a provider that answers it."""

    module_kind: ClassVar[str] = "orchestrator"

    async def test_mount_succeeds(self, orchestrator_module: Any) -> None:
        assert orchestrator_module is not None

    async def test_orchestrator_has_execute_method(self, orchestrator_module: Any) -> None:
        assert callable(orchestrator_module.execute), "execute is not callable"

    async def test_execute_returns_string(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        answer = await _execute(orchestrator_module, _PROMPT, mock_deps)
        _expect_text(answer, "the return value of execute()")

    async def test_execute_with_empty_prompt(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        try:
            answer = await _execute(orchestrator_module, "", mock_deps)
        except ValueError:
            # Orchestrator Contract, Validation: an empty prompt may be rejected.
            return
        _expect(answer, str, "the return value of execute() for an empty prompt")

    async def test_orchestrator_uses_provider(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        await _execute(orchestrator_module, _PROMPT, mock_deps)
        awaited = mock_deps[1]["default"].complete.await_count
        assert awaited > 0, "execute() did not await complete() of the provider"

    async def test_orchestrator_updates_context(
        self, orchestrator_module: Any, mock_deps: tuple[Any, ...]
    ) -> None:
        await _execute(orchestrator_module, _PROMPT, mock_deps)
        assert mock_deps[0].messages, "execute() added no message to the context"


async def _execute(orchestrator: Any, prompt: str, mock_deps: tuple[Any, ...]) -> Any:
    context, providers, tools, hooks = mock_deps
    return await orchestrator.execute(
        prompt=prompt, context=context, providers=providers, tools=tools, hooks=hooks
    )


@pytest.mark.asyncio
class ContextBehaviorTests:
    """Behaviour of every context manager with stored messages."""

    module_kind: ClassVar[str] = "context"

    async def test_mount_succeeds(self, context_module: Any) -> None:
        assert context_module is not None

    async def test_context_has_required_methods(self, context_module: Any) -> None:
        for name in ("add_message", "get_messages", "clear"):
            assert callable(getattr(context_module, name, None)), f"{name} is missing"

    async def test_message_round_trip(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        contents = _contents(await context_module.get_messages())
        assert "Hello" in contents, "get_messages() does not return a message that was added"

    async def test_multiple_messages(self, context_module: Any) -> None:
        texts = ["first", "second", "third"]
        for text in texts:
            await context_module.add_message({"role": "user", "content": text})
        contents = _contents(await context_module.get_messages())
        kept = [content for content in contents if content in texts]
        assert kept == texts, f"get_messages() returned {kept} of the messages {texts}"

    async def test_clear_removes_messages(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Forget this"})
        await context_module.clear()
        contents = _contents(await context_module.get_messages())
        assert "Forget this" not in contents, "clear() did not remove the messages"

    async def test_get_messages_for_request_returns_messages(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        messages = await context_module.get_messages_for_request()
        _expect(messages, list, "the return value of get_messages_for_request()")
        assert "Hello" in _contents(messages), "the view does not contain the only message"

    async def test_internal_should_compact_returns_bool(self, context_module: Any) -> None:
        should_compact = _without_arguments(context_module, "_should_compact")
        if should_compact is not None:
            _expect(await _awaited(should_compact()), bool, "the return value of _should_compact()")

    async def test_internal_compact_does_not_crash(self, context_module: Any) -> None:
        await context_module.add_message({"role": "user", "content": "Hello"})
        compact = _without_arguments(context_module, "_compact_internal")
        if compact is not None:
            await _awaited(compact())

    async def test_add_invalid_message_does_not_crash(self, context_module: Any) -> None:
        try:
            await context_module.add_message({})
        except (ValueError, TypeError, KeyError):
            # Context Contract, add_message: a message without a role may be rejected.
            return
        assert await context_module.get_messages() is not None, "get_messages() returned None"

    async def test_get_messages_never_returns_none(self, context_module: Any) -> None:
        assert await context_module.get_messages() is not None, "get_messages() returned None"
        await context_module.clear()
        assert await context_module.get_messages() is not None, "get_messages() returned None"


def _contents(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages if "content" in message]


def _without_arguments(instance: object, name: str) -> Callable[[], Any] | None:
    """A private method of ``instance`` if it exists and requires no arguments."""
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
