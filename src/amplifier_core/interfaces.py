"""The protocols of the five module kinds, and of approval.

Each is runtime-checkable and structural: a module does not have to inherit from it.
The page of each kind is in ``contracts/``.
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
        """Handle `event`; `data` is a copy that may be changed."""
        ...


@runtime_checkable
class Hooks(Protocol):
    """The part of the hook registry that an orchestrator needs."""

    async def emit(self, event: str, data: Any) -> HookResult: ...

    def register(
        self, event: str, handler: Any, priority: int = 0, name: str | None = None
    ) -> Callable[[], None]: ...


class _EmptySchema:
    """Returns a new empty schema on each access; instances may set their own."""

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
        """Description of the tool for the model."""
        ...

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """Run the tool. Return failures as a result with ``success=False``, not as an exception."""
        ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give subclasses an empty `input_schema` unless they define one.

        It is not a member of the protocol, because it is optional.
        """
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "input_schema"):
            setattr(cls, "input_schema", _EmptySchema())  # noqa: B010 - no declared member


@runtime_checkable
class ToolWithSchema(Tool, Protocol):
    """A tool with a JSON schema of its input."""

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
        """Description and requirements of the provider."""
        ...

    async def list_models(self) -> list[ModelInfo]:
        """The available models."""
        ...

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        """The model's complete answer.

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
    """The memory of the agent. Contract: ``contracts/context.md``."""

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message exactly as received."""
        ...

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """The messages for a request, within the budget; stored messages do not change.

        Args:
            token_budget: Limit in tokens.
            provider: Provider whose window determines the limit if `token_budget` is not given.
        """
        ...

    async def get_messages(self) -> list[dict[str, Any]]:
        """All messages, not compacted."""
        ...

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace all messages, when a session is resumed."""
        ...

    async def clear(self) -> None:
        """Remove all messages."""
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
    """A request to an approval provider; `timeout` in seconds."""

    model_config = ConfigDict(defer_build=True)

    tool_name: str
    action: str
    risk_level: str
    details: dict[str, Any] = Field(default_factory=dict)
    timeout: float | None = Field(default=None, gt=0)


class ApprovalResponse(BaseModel):
    """The decision of an approval provider."""

    model_config = ConfigDict(defer_build=True)

    approved: bool
    reason: str | None = None
    remember: bool = False


@runtime_checkable
class ApprovalProvider(Protocol):
    """Decides on approval requests of modules that ask through a capability."""

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse: ...


Cleanup = Callable[[], Awaitable[Any] | Any]
"""A function that `mount` may return, called when the session ends; sync or async."""
