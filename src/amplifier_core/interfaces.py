"""The protocols of the five module kinds, and of approval.

Each is runtime-checkable and purely structural: a module never inherits from the
kernel. The page of each kind lies beside this file in ``contracts/``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from amplifier_core.message_models import ChatRequest, ChatResponse, ToolCall
from amplifier_core.models import HookResult, ModelInfo, ProviderInfo, ToolResult


@runtime_checkable
class HookHandler(Protocol):
    """Observes or decides on an event. Contract: ``contracts/hook.md``."""

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """What should happen, given `event` and its data (a copy, safe to change)."""
        ...


@runtime_checkable
class Hooks(Protocol):
    """What an orchestrator needs of the hook registry."""

    async def emit(self, event: str, data: Any) -> HookResult: ...

    def register(
        self, event: str, handler: Any, priority: int = 0, name: str | None = None
    ) -> Callable[[], None]: ...


class _EmptySchema:
    """An empty schema of its own for each reader; instances may set theirs."""

    def __get__(self, tool: Any, owner: Any = None) -> dict[str, Any]:
        return {}


@runtime_checkable
class Tool(Protocol):
    """A capability the model can call. Contract: ``contracts/tool.md``."""

    @property
    def name(self) -> str:
        """Name the model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model."""
        ...

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Do the work; a failure is a result with ``success=False``, not an exception."""
        ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give subclasses an empty `input_schema` unless they have their own.

        Not a member, because a tool that lacks it is a tool all the same.
        """
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "input_schema"):
            setattr(cls, "input_schema", _EmptySchema())  # noqa: B010 - no declared member


@runtime_checkable
class ToolWithSchema(Tool, Protocol):
    """A tool that also says what input it takes, as a JSON schema."""

    @property
    def input_schema(self) -> dict[str, Any]: ...


@runtime_checkable
class Provider(Protocol):
    """A model service. Contract: ``contracts/provider.md``."""

    @property
    def name(self) -> str:
        """Name of the provider."""
        ...

    def get_info(self) -> ProviderInfo:
        """What the provider is and needs."""
        ...

    async def list_models(self) -> list[ModelInfo]:
        """The models it offers."""
        ...

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """The model's whole answer.

        Raises:
            amplifier_core.llm_errors.LLMError: The call failed.
        """
        ...

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """The tool calls in `response`, in the order the model made them."""
        ...


@runtime_checkable
class StreamingProvider(Provider, Protocol):
    """A provider that can also stream (Orchestrator Contract, Streaming Orchestrator)."""

    def stream_complete(self, request: ChatRequest, **kwargs: Any) -> AsyncIterator[Any]:
        """Chunks of the answer; the last one is the full `ChatResponse`."""
        ...


@runtime_checkable
class ContextManager(Protocol):
    """What the agent remembers. Contract: ``contracts/context.md``."""

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message exactly as received."""
        ...

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """A view that fits the budget; what is stored never changes.

        Args:
            token_budget: An explicit limit in tokens.
            provider: Provider whose window sets the limit when none is given.
        """
        ...

    async def get_messages(self) -> list[dict[str, Any]]:
        """Every message, uncompacted."""
        ...

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace the history, on resume."""
        ...

    async def clear(self) -> None:
        """Forget every message."""
        ...


@runtime_checkable
class Orchestrator(Protocol):
    """The agent loop. Contract: ``contracts/orchestrator.md``."""

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        **kwargs: Any,
    ) -> str:
        """Run one turn and return the final text. The session also passes ``coordinator``."""
        ...


class ApprovalRequest(BaseModel):
    """A question to an approval provider; `timeout` in seconds."""

    model_config = ConfigDict(defer_build=True)

    tool_name: str
    action: str
    risk_level: str
    details: dict[str, Any] = Field(default_factory=dict)
    timeout: float | None = Field(default=None, gt=0)


class ApprovalResponse(BaseModel):
    """The answer of an approval provider."""

    model_config = ConfigDict(defer_build=True)

    approved: bool
    reason: str | None = None
    remember: bool = False


@runtime_checkable
class ApprovalProvider(Protocol):
    """Decides on an approval request, for modules that ask through a capability."""

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse: ...


Cleanup = Callable[[], Awaitable[Any] | Any]
"""What a mount may return to be called when the session ends; sync or async."""
