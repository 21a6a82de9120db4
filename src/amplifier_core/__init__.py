"""The kernel: mechanisms only. Modules bring behaviour, an app brings policy.

Names are loaded on first use, so that importing the package costs next to nothing
and never pulls in testing helpers or validators.
"""

import importlib
from typing import TYPE_CHECKING, Any

from amplifier_core import _load_validation as load_validation

if TYPE_CHECKING:
    from amplifier_core import capabilities as capabilities
    from amplifier_core.cancellation import CancellationState as CancellationState
    from amplifier_core.cancellation import CancellationToken as CancellationToken
    from amplifier_core.cancellation import CancellationToken as RustCancellationToken
    from amplifier_core.content_models import ContentBlock as ContentBlock
    from amplifier_core.content_models import ContentBlockType as ContentBlockType
    from amplifier_core.content_models import TextContent as TextContent
    from amplifier_core.content_models import ThinkingContent as ThinkingContent
    from amplifier_core.content_models import ToolCallContent as ToolCallContent
    from amplifier_core.content_models import ToolResultContent as ToolResultContent
    from amplifier_core.coordinator import ModuleCoordinator as ModuleCoordinator
    from amplifier_core.coordinator import ModuleCoordinator as RustCoordinator
    from amplifier_core.hooks import HookRegistry as HookRegistry
    from amplifier_core.hooks import HookRegistry as RustHookRegistry
    from amplifier_core.interfaces import ApprovalProvider as ApprovalProvider
    from amplifier_core.interfaces import ApprovalRequest as ApprovalRequest
    from amplifier_core.interfaces import ApprovalResponse as ApprovalResponse
    from amplifier_core.interfaces import ContextManager as ContextManager
    from amplifier_core.interfaces import HookHandler as HookHandler
    from amplifier_core.interfaces import Orchestrator as Orchestrator
    from amplifier_core.interfaces import Provider as Provider
    from amplifier_core.interfaces import Tool as Tool
    from amplifier_core.llm_errors import AbortError as AbortError
    from amplifier_core.llm_errors import AccessDeniedError as AccessDeniedError
    from amplifier_core.llm_errors import AuthenticationError as AuthenticationError
    from amplifier_core.llm_errors import ConfigurationError as ConfigurationError
    from amplifier_core.llm_errors import ContentFilterError as ContentFilterError
    from amplifier_core.llm_errors import ContextLengthError as ContextLengthError
    from amplifier_core.llm_errors import InvalidRequestError as InvalidRequestError
    from amplifier_core.llm_errors import InvalidToolCallError as InvalidToolCallError
    from amplifier_core.llm_errors import LLMError as LLMError
    from amplifier_core.llm_errors import LLMTimeoutError as LLMTimeoutError
    from amplifier_core.llm_errors import NetworkError as NetworkError
    from amplifier_core.llm_errors import NotFoundError as NotFoundError
    from amplifier_core.llm_errors import ProviderUnavailableError as ProviderUnavailableError
    from amplifier_core.llm_errors import QuotaExceededError as QuotaExceededError
    from amplifier_core.llm_errors import RateLimitError as RateLimitError
    from amplifier_core.llm_errors import StreamError as StreamError
    from amplifier_core.loader import AmplifierModuleLoader as AmplifierModuleLoader
    from amplifier_core.loader import ModuleLoader as ModuleLoader
    from amplifier_core.loader import ModuleValidationError as ModuleValidationError
    from amplifier_core.message_models import ChatRequest as ChatRequest
    from amplifier_core.message_models import ChatResponse as ChatResponse
    from amplifier_core.message_models import Degradation as Degradation
    from amplifier_core.message_models import ImageBlock as ImageBlock
    from amplifier_core.message_models import Message as Message
    from amplifier_core.message_models import ReasoningBlock as ReasoningBlock
    from amplifier_core.message_models import RedactedThinkingBlock as RedactedThinkingBlock
    from amplifier_core.message_models import ResponseFormat as ResponseFormat
    from amplifier_core.message_models import ResponseFormatJson as ResponseFormatJson
    from amplifier_core.message_models import ResponseFormatJsonSchema as ResponseFormatJsonSchema
    from amplifier_core.message_models import ResponseFormatText as ResponseFormatText
    from amplifier_core.message_models import TextBlock as TextBlock
    from amplifier_core.message_models import ThinkingBlock as ThinkingBlock
    from amplifier_core.message_models import ToolCall as ToolCall
    from amplifier_core.message_models import ToolCallBlock as ToolCallBlock
    from amplifier_core.message_models import ToolResultBlock as ToolResultBlock
    from amplifier_core.message_models import ToolSpec as ToolSpec
    from amplifier_core.message_models import Usage as Usage
    from amplifier_core.models import CompactionResult as CompactionResult
    from amplifier_core.models import ConfigField as ConfigField
    from amplifier_core.models import ContextInjection as ContextInjection
    from amplifier_core.models import HookResult as HookResult
    from amplifier_core.models import ModelInfo as ModelInfo
    from amplifier_core.models import ModuleInfo as ModuleInfo
    from amplifier_core.models import Pricing as Pricing
    from amplifier_core.models import ProviderInfo as ProviderInfo
    from amplifier_core.models import SessionStatus as SessionStatus
    from amplifier_core.models import ToolResult as ToolResult
    from amplifier_core.session import AmplifierSession as AmplifierSession
    from amplifier_core.session import AmplifierSession as RustSession
    from amplifier_core.testing import EventRecorder as EventRecorder
    from amplifier_core.testing import MockContextManager as MockContextManager
    from amplifier_core.testing import MockCoordinator as MockCoordinator
    from amplifier_core.testing import MockTool as MockTool
    from amplifier_core.testing import ScriptedOrchestrator as ScriptedOrchestrator
    from amplifier_core.testing import create_test_coordinator as create_test_coordinator
    from amplifier_core.testing import wait_for as wait_for
    from amplifier_core.utils.retry import RetryConfig as RetryConfig
    from amplifier_core.utils.retry import classify_error_message as classify_error_message
    from amplifier_core.utils.retry import retry_with_backoff as retry_with_backoff

__version__ = "2.0.2"
"""Version of the published kernel whose surface this one provides."""

_EXPORTS = {
    "session": "AmplifierSession",
    "coordinator": "ModuleCoordinator",
    "loader": "ModuleLoader AmplifierModuleLoader ModuleValidationError",
    "hooks": "HookRegistry",
    "cancellation": "CancellationToken CancellationState",
    "models": "ToolResult HookResult ContextInjection CompactionResult ConfigField ModelInfo "
    "ModuleInfo Pricing ProviderInfo SessionStatus",
    "interfaces": "Orchestrator Provider Tool ContextManager HookHandler ApprovalProvider "
    "ApprovalRequest ApprovalResponse",
    "message_models": "ChatRequest ChatResponse Message TextBlock ThinkingBlock "
    "RedactedThinkingBlock ToolCallBlock ToolResultBlock ImageBlock ReasoningBlock ToolCall "
    "ToolSpec Usage Degradation ResponseFormat ResponseFormatText ResponseFormatJson "
    "ResponseFormatJsonSchema",
    "llm_errors": "LLMError RateLimitError AuthenticationError ContextLengthError "
    "ContentFilterError InvalidRequestError ProviderUnavailableError LLMTimeoutError "
    "AccessDeniedError NetworkError QuotaExceededError NotFoundError StreamError AbortError "
    "InvalidToolCallError ConfigurationError",
    "content_models": "ContentBlock ContentBlockType TextContent ThinkingContent ToolCallContent "
    "ToolResultContent",
    "testing": "MockCoordinator MockTool MockContextManager EventRecorder ScriptedOrchestrator "
    "create_test_coordinator wait_for",
    "utils.retry": "RetryConfig retry_with_backoff classify_error_message",
}

_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

# Names by which the published kernel also offers its native classes.
_ALIASES = {
    "RustSession": "AmplifierSession",
    "RustHookRegistry": "HookRegistry",
    "RustCancellationToken": "CancellationToken",
    "RustCoordinator": "ModuleCoordinator",
}

_SUBMODULES = frozenset(
    [
        "approval",
        "cancellation",
        "capabilities",
        "cli",
        "content_models",
        "coordinator",
        "correlation",
        "display",
        "events",
        "hooks",
        "interfaces",
        "llm_errors",
        "loader",
        "message_models",
        "models",
        "module_sources",
        "pytest_plugin",
        "session",
        "testing",
        "utils",
        "validation",
    ]
)

RUST_AVAILABLE = False


__all__ = [
    "RUST_AVAILABLE",
    "AbortError",
    "AccessDeniedError",
    "AmplifierModuleLoader",
    "AmplifierSession",
    "ApprovalProvider",
    "ApprovalRequest",
    "ApprovalResponse",
    "AuthenticationError",
    "CancellationState",
    "CancellationToken",
    "ChatRequest",
    "ChatResponse",
    "CompactionResult",
    "ConfigField",
    "ConfigurationError",
    "ContentBlock",
    "ContentBlockType",
    "ContentFilterError",
    "ContextInjection",
    "ContextLengthError",
    "ContextManager",
    "Degradation",
    "EventRecorder",
    "HookHandler",
    "HookRegistry",
    "HookResult",
    "ImageBlock",
    "InvalidRequestError",
    "InvalidToolCallError",
    "LLMError",
    "LLMTimeoutError",
    "Message",
    "MockContextManager",
    "MockCoordinator",
    "MockTool",
    "ModelInfo",
    "ModuleCoordinator",
    "ModuleInfo",
    "ModuleLoader",
    "ModuleValidationError",
    "NetworkError",
    "NotFoundError",
    "Orchestrator",
    "Pricing",
    "Provider",
    "ProviderInfo",
    "ProviderUnavailableError",
    "QuotaExceededError",
    "RateLimitError",
    "ReasoningBlock",
    "RedactedThinkingBlock",
    "ResponseFormat",
    "ResponseFormatJson",
    "ResponseFormatJsonSchema",
    "ResponseFormatText",
    "RetryConfig",
    "RustCancellationToken",
    "RustCoordinator",
    "RustHookRegistry",
    "RustSession",
    "ScriptedOrchestrator",
    "SessionStatus",
    "StreamError",
    "TextBlock",
    "TextContent",
    "ThinkingBlock",
    "ThinkingContent",
    "Tool",
    "ToolCall",
    "ToolCallBlock",
    "ToolCallContent",
    "ToolResult",
    "ToolResultBlock",
    "ToolResultContent",
    "ToolSpec",
    "Usage",
    "__version__",
    "capabilities",
    "classify_error_message",
    "create_test_coordinator",
    "retry_with_backoff",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"amplifier_core.{name}")
    target = _ALIASES.get(name, name)
    home = _HOME.get(target)
    if home is None:
        raise AttributeError(f"module 'amplifier_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"amplifier_core.{home}"), target)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


class _Validator:
    """The kernel's validators, imported when a module has to be looked at."""

    def mount_function(self, package: Any, name: str) -> Any:
        from amplifier_core.validation._runner import check_mount_function

        return _errors(check_mount_function(package, name))

    def instances(self, kind: str, instances: Any) -> Any:
        from amplifier_core.validation._runner import check_instances

        return _errors(check_instances(kind, instances))


def _errors(checks: Any) -> Any:
    return [check for check in checks if not check.passed and check.severity == "error"]


load_validation.install(_Validator())
