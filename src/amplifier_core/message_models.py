"""Requests to a model and its answers: the pydantic models that all providers use.

Sources: Provider Contract (ChatRequest, ChatResponse, ToolCall, Usage) and
Orchestrator Contract. The latter's samples read responses and tool calls as
dictionaries, so every model here also supports ``x["key"]``, ``x.get("key")``
and ``"key" in x``.

Unknown fields are kept as attributes, so that a provider can pass on additional
data from its vendor.
"""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
)

Visibility = Literal["internal", "developer", "user"]


def _exact_decimal(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(
            "expected a decimal string or an int; a float cannot represent money exactly"
        )
    return value


Money = Annotated[Decimal, BeforeValidator(_exact_decimal), PlainSerializer(str, return_type=str)]
"""An amount in US dollars: created from str, int or Decimal, always dumped as a string."""


class MessageModel(BaseModel):
    """Base of the models below: keeps extra fields and can be read like a mapping.

    Raises:
        KeyError: ``x["key"]`` for a name without a field.
    """

    model_config = ConfigDict(extra="allow", defer_build=True)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        if key in type(self).model_fields:
            return True
        extra = self.__pydantic_extra__
        return extra is not None and key in extra

    def get(self, key: str, default: Any = None) -> Any:
        """The field's value, or `default` if the field does not exist."""
        return getattr(self, key) if key in self else default


class _Block(MessageModel):
    visibility: Visibility | None = None


class TextBlock(_Block):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(_Block):
    """Reasoning; sent back to the vendor unchanged and with its signature, or not at all."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str | None = None
    content: list[Any] | None = None


class RedactedThinkingBlock(_Block):
    """Reasoning the vendor encrypted; `data` is opaque."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str


class ToolCallBlock(_Block):
    """A tool call inside an assistant message."""

    type: Literal["tool_call"] = "tool_call"
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(_Block):
    """The result of a tool call inside a message."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    output: Any


class ImageBlock(_Block):
    """An image; `source` is the vendor-neutral ``{type, media_type, data}`` or ``{type, url}``."""

    type: Literal["image"] = "image"
    source: dict[str, Any]


class ReasoningBlock(_Block):
    """A reasoning item of the Responses API."""

    type: Literal["reasoning"] = "reasoning"
    content: list[Any]
    summary: list[Any]


ContentBlockUnion = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolCallBlock
    | ToolResultBlock
    | ImageBlock
    | ReasoningBlock,
    Discriminator("type"),
]

Role = Literal["system", "developer", "user", "assistant", "function", "tool"]


class Message(MessageModel):
    """One message of a conversation."""

    role: Role
    content: str | list[ContentBlockUnion]
    name: str | None = None
    tool_call_id: str | None = None
    metadata: dict[str, Any] | None = None


class ToolSpec(MessageModel):
    """Description of a tool for a model; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, Any]
    description: str | None = None


class ToolCall(MessageModel):
    """A tool call made by a model (Tool Contract, Data Models)."""

    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def input(self) -> dict[str, Any]:
        """Alias of `arguments`, used in the samples of the Orchestrator Contract."""
        return self.arguments

    def __contains__(self, key: object) -> bool:
        return key == "input" or super().__contains__(key)


class Usage(MessageModel):
    """Tokens of one model call. `input_tokens` includes cached tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    reasoning_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: Money | None = None


class Degradation(MessageModel):
    """A requested feature, the one provided instead, and the reason."""

    requested: str
    actual: str
    reason: str


class _Format(BaseModel):
    model_config = ConfigDict(defer_build=True)


class ResponseFormatText(_Format):
    """The answer is free text."""

    type: Literal["text"] = "text"


class ResponseFormatJson(_Format):
    """The answer is JSON."""

    type: Literal["json"] = "json"


class ResponseFormatJsonSchema(_Format):
    """The answer is JSON that matches a schema; the alias of the field is ``schema``."""

    type: Literal["json_schema"] = "json_schema"
    json_schema: dict[str, Any] = Field(
        validation_alias=AliasChoices("json_schema", "schema"), serialization_alias="schema"
    )
    strict: bool | None = None


ResponseFormat = ResponseFormatText | ResponseFormatJson | ResponseFormatJsonSchema


class ChatRequest(MessageModel):
    """One model call. `timeout` is in seconds."""

    messages: list[Message]
    tools: list[ToolSpec] | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    conversation_id: str | None = None
    stream: bool | None = False
    metadata: dict[str, Any] | None = None
    model: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    stop: list[str] | None = None
    reasoning_effort: str | None = None
    timeout: float | None = None


class ChatResponse(MessageModel):
    """A model's complete answer."""

    content: list[ContentBlockUnion]
    tool_calls: list[ToolCall] | None = None
    usage: Usage | None = None
    degradation: Degradation | None = None
    finish_reason: str | None = None
    metadata: dict[str, Any] | None = None
