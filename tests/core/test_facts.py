"""Public names: exports, events, capabilities, errors, correlation."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import amplifier_core
from amplifier_core import capabilities, correlation, events, interfaces, llm_errors, module_sources
from amplifier_core.approval import ApprovalSystem
from amplifier_core.display import DisplaySystem
from amplifier_core.models import ToolResult


def test_every_exported_name_exists() -> None:
    missing = [name for name in amplifier_core.__all__ if not hasattr(amplifier_core, name)]
    assert missing == []
    assert set(amplifier_core.__all__) <= set(dir(amplifier_core))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        amplifier_core.nonsense  # noqa: B018


def test_the_names_type_checkers_see_are_the_names_loaded_on_use() -> None:
    import ast

    assert amplifier_core.__file__ is not None
    stub = Path(amplifier_core.__file__).with_suffix(".pyi")
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    seen = {
        (alias.asname, node.module, alias.name)
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assigned = {ast.unparse(node) for node in body if isinstance(node, ast.Assign)}
    aliases = {tuple(text.split(" = ")) for text in assigned}
    for alias, name in aliases:
        assert getattr(amplifier_core, alias) is getattr(amplifier_core, name)
    submodules = {name for name, module, _ in seen if module == "amplifier_core"}
    for name, module, original in seen:
        assert name is not None
        assert module is not None
        value = getattr(amplifier_core, name)
        if name in submodules:
            assert name == original
            assert value is sys.modules[f"amplifier_core.{name}"]
        else:
            assert value is getattr(sys.modules[module], original)
    listed = {name for name, _, _ in seen} | {alias for alias, _ in aliases}
    assert listed - submodules == set(amplifier_core.__all__) - {
        "RUST_AVAILABLE",
        "__version__",
        "capabilities",
    }
    assert len(amplifier_core.__all__) == len(set(amplifier_core.__all__))


def test_one_object_under_every_path() -> None:
    from amplifier_core import coordinator, hooks, models, session

    assert amplifier_core.HookResult is models.HookResult is hooks.HookResult
    assert amplifier_core.HookRegistry is hooks.HookRegistry is amplifier_core.RustHookRegistry
    assert amplifier_core.ModuleCoordinator is coordinator.ModuleCoordinator
    assert amplifier_core.AmplifierSession is session.AmplifierSession
    assert amplifier_core.llm_errors is llm_errors
    assert amplifier_core.RUST_AVAILABLE is False


def test_a_constant_is_named_after_its_event() -> None:
    named = {name: value for name, value in vars(events).items() if name.isupper()}
    everything = named.pop("ALL_EVENTS")
    spelled = {name: re.sub("[:.]", "_", value.upper()) for name, value in named.items()}
    assert spelled == {name: name for name in named}
    assert sorted(everything) == sorted(named.values())
    assert len(everything) == 44


def test_capabilities_are_lower_case_names() -> None:
    named = {name: value for name, value in vars(capabilities).items() if name.isupper()}
    everything = named.pop("ALL_WELL_KNOWN_CAPABILITIES")
    assert all(value == name.lower() for name, value in named.items())
    assert everything == list(named.values())
    assert len(everything) == 16


def test_protocols_of_the_app_can_be_checked_at_run_time() -> None:
    assert not isinstance(object(), ApprovalSystem)
    assert not isinstance(object(), DisplaySystem)


def test_a_tool_that_inherits_the_protocol_has_an_input_schema() -> None:
    class Inheriting(interfaces.Tool):
        name = "a"
        description = "b"

        async def execute(self, input: dict[str, Any]) -> ToolResult:
            return ToolResult()

    class WithSchema(Inheriting):
        input_schema = {"type": "object"}  # noqa: RUF012

    class SetsItsOwn(Inheriting):
        def __init__(self) -> None:
            self.input_schema = {"type": "object"}

    assert Inheriting().input_schema == {}  # type: ignore[attr-defined]
    assert SetsItsOwn().input_schema == {"type": "object"}
    assert WithSchema().input_schema == {"type": "object"}
    assert isinstance(Inheriting(), interfaces.ToolWithSchema)


def test_a_tool_without_an_input_schema_is_a_tool() -> None:
    class Plain:
        name = "a"
        description = "b"

        async def execute(self, input: dict[str, Any]) -> ToolResult:
            return ToolResult()

    assert isinstance(Plain(), interfaces.Tool)
    assert not isinstance(Plain(), interfaces.ToolWithSchema)
    assert not isinstance(object(), interfaces.Tool)


@pytest.mark.parametrize(
    ("name", "parent", "retryable"),
    [
        ("RateLimitError", "LLMError", True),
        ("QuotaExceededError", "RateLimitError", False),
        ("AuthenticationError", "LLMError", False),
        ("AccessDeniedError", "AuthenticationError", False),
        ("ContextLengthError", "LLMError", False),
        ("ContentFilterError", "LLMError", False),
        ("InvalidRequestError", "LLMError", False),
        ("ProviderUnavailableError", "LLMError", True),
        ("NetworkError", "ProviderUnavailableError", True),
        ("LLMTimeoutError", "LLMError", True),
        ("NotFoundError", "LLMError", False),
        ("StreamError", "LLMError", True),
        ("AbortError", "LLMError", False),
        ("ConfigurationError", "LLMError", False),
        ("InvalidToolCallError", "LLMError", False),
    ],
)
def test_the_tree_of_model_errors(name: str, parent: str, retryable: bool) -> None:
    kind = getattr(llm_errors, name)
    assert kind.__bases__ == (getattr(llm_errors, parent),)
    error = kind("m")
    assert error.retryable is retryable
    assert kind("m", retryable=not retryable).retryable is not retryable
    assert (error.provider, error.model, error.status_code, error.retry_after) == (None,) * 4
    assert error.delay_multiplier == 1.0
    assert str(error) == "m"


def test_the_repr_of_an_error_shows_non_default_values() -> None:
    error = llm_errors.LLMError("m", provider="p", status_code=500, retry_after=2.0)
    assert repr(error) == "LLMError('m', provider='p', status_code=500, retry_after=2.0)"
    call = llm_errors.InvalidToolCallError("m", tool_name="t", raw_arguments="{")
    assert (call.tool_name, call.raw_arguments) == ("t", "{")
    assert repr(call) == "InvalidToolCallError('m', tool_name='t', raw_arguments='{')"
    with pytest.raises(TypeError):
        llm_errors.InvalidToolCallError("m", retry_after=1)  # type: ignore[call-arg]


def test_events_outside_a_model_call_get_only_explicit_ids() -> None:
    assert correlation.resolve_request_id("tool:pre") is None
    assert correlation.resolve_request_id("tool:pre", "x") == "x"
    opened = correlation.resolve_request_id("llm:request")
    assert correlation.current_request_id() == opened
    correlation.reset_request_id()
    assert correlation.current_request_id() is None
    assert correlation.new_request_id() != correlation.new_request_id()


def test_folders_as_module_sources() -> None:
    source = module_sources.FileSystemModuleSource(["a"])
    source.get_module_paths().append("b")
    assert source.get_module_paths() == ["a"]
    assert source.get_mention_mappings() == {}
    assert not issubclass(module_sources.ModuleNotFoundError, ImportError)
