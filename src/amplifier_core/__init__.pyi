"""Every name the package exports: type checkers read this file, `__init__.py` loads names from it."""

from typing import Final

from amplifier_core import approval as approval
from amplifier_core import cancellation as cancellation
from amplifier_core import capabilities as capabilities
from amplifier_core import cli as cli
from amplifier_core import content_models as content_models
from amplifier_core import coordinator as coordinator
from amplifier_core import correlation as correlation
from amplifier_core import display as display
from amplifier_core import events as events
from amplifier_core import hooks as hooks
from amplifier_core import interfaces as interfaces
from amplifier_core import llm_errors as llm_errors
from amplifier_core import loader as loader
from amplifier_core import message_models as message_models
from amplifier_core import models as models
from amplifier_core import module_sources as module_sources
from amplifier_core import pytest_plugin as pytest_plugin
from amplifier_core import session as session
from amplifier_core import testing as testing
from amplifier_core import utils as utils
from amplifier_core import validation as validation
from amplifier_core.cancellation import CancellationState as CancellationState
from amplifier_core.cancellation import CancellationToken as CancellationToken
from amplifier_core.content_models import ContentBlock as ContentBlock
from amplifier_core.content_models import ContentBlockType as ContentBlockType
from amplifier_core.content_models import TextContent as TextContent
from amplifier_core.content_models import ThinkingContent as ThinkingContent
from amplifier_core.content_models import ToolCallContent as ToolCallContent
from amplifier_core.content_models import ToolResultContent as ToolResultContent
from amplifier_core.coordinator import ModuleCoordinator as ModuleCoordinator
from amplifier_core.hooks import HookRegistry as HookRegistry
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
from amplifier_core.utils.retry import RetryConfig as RetryConfig
from amplifier_core.utils.retry import classify_error_message as classify_error_message
from amplifier_core.utils.retry import retry_with_backoff as retry_with_backoff
from amplifier_kit.testing import EventRecorder as EventRecorder
from amplifier_kit.testing import MockContextManager as MockContextManager
from amplifier_kit.testing import MockCoordinator as MockCoordinator
from amplifier_kit.testing import MockTool as MockTool
from amplifier_kit.testing import ScriptedOrchestrator as ScriptedOrchestrator
from amplifier_kit.testing import create_test_coordinator as create_test_coordinator
from amplifier_kit.testing import wait_for as wait_for

__version__: Final[str]
RUST_AVAILABLE: Final[bool]

# The published kernel also offers its native classes by these names.
RustCancellationToken = CancellationToken
RustCoordinator = ModuleCoordinator
RustHookRegistry = HookRegistry
RustSession = AmplifierSession
