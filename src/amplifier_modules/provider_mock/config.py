"""Settings of provider-mock, and the form of a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from amplifier_core import llm_errors
from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
)

MODULE_ID = "provider-mock"

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


class _Settings(ModuleConfig):
    model_config = ConfigDict(populate_by_name=True)


class Fault(_Settings):
    """An error to raise instead of an answer.

    Attributes:
        type: Name of a class of `amplifier_core.llm_errors`, such as ``RateLimitError``.
        message: Its message.
        retryable: Overrides the default of the class.
        status_code: HTTP status to report.
        retry_after: Seconds to report as the wait the service asks for.
        after_chunks: When streaming, how many chunks come through before the error.
    """

    type: str
    message: str = "scripted fault"
    retryable: bool | None = None
    status_code: int | None = None
    retry_after: float | None = Field(default=None, ge=0)
    after_chunks: int = Field(default=0, ge=0)

    @field_validator("type")
    @classmethod
    def _is_an_llm_error(cls, value: str) -> str:
        kind = getattr(llm_errors, value, None)
        if not (isinstance(kind, type) and issubclass(kind, llm_errors.LLMError)):
            raise ValueError(f"'{value}' is not an error class of amplifier_core.llm_errors")
        return value

    def error(self, model: str) -> llm_errors.LLMError:
        """The exception to raise."""
        kind: type[llm_errors.LLMError] = getattr(llm_errors, self.type)
        error = kind(
            self.message,
            provider="mock",
            model=model,
            status_code=self.status_code,
            **({} if self.retryable is None else {"retryable": self.retryable}),
        )
        error.retry_after = self.retry_after
        return error


class ScriptedCall(_Settings):
    """A tool call in a reply.

    Attributes:
        name: Tool to call.
        input: Its arguments (also `arguments`).
        id: Id of the call; by default unique for the provider.
    """

    name: str
    input: dict[str, Any] = Field(
        default_factory=dict[str, Any], validation_alias=AliasChoices("input", "arguments")
    )
    id: str | None = None


class Reply(_Settings):
    """One answer. The blocks come in the order: thinking, text, tool calls.

    Attributes:
        text: Text of the answer.
        thinking: Thinking text, with its `signature`.
        signature: Signature of the thinking block.
        redacted_thinking: Opaque data of a redacted thinking block.
        tool_calls: Tools to call.
        content: All blocks exactly, instead of the fields above.
        usage: Token counts as in `amplifier_core.message_models.Usage`; missing counts are
            estimated from the text.
        finish_reason: By default ``tool_calls`` with tool calls, else ``stop``.
        delay: Seconds before the answer begins, instead of the provider's `delay`.
        error: A fault instead of the answer, or in the middle of it.
    """

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    redacted_thinking: str | None = None
    tool_calls: list[ScriptedCall] = Field(default_factory=list[ScriptedCall])
    content: list[dict[str, Any]] | None = None
    usage: dict[str, Any] = Field(default_factory=dict[str, Any])
    finish_reason: FinishReason | None = None
    delay: float | None = Field(default=None, ge=0)
    error: Fault | None = None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """The mapping, or the text alone."""
        return {"anyOf": [handler(core), {"type": "string"}]}

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class MockConfig(_Settings):
    """Settings of provider-mock.

    Attributes:
        replies: The replies, one after the other; a string is a reply with that text.
        script: YAML file with the replies, a list or a mapping with `replies`; a relative path
            starts at the session's working directory.
        on_end: What to do after the last reply: raise an error, repeat the last one, start again,
            or echo.
        model: Name of the model (also `default_model`).
        priority: The provider with the lowest number is used first.
        streaming: Offer `stream_complete`.
        chunk_size: Characters in each streamed delta.
        chunk_delay: Seconds between two streamed deltas.
        delay: Seconds before each answer begins.
        supports_tools: Whether loops may offer tools.
        context_window: Context window the model reports, in tokens.
        max_output_tokens: Output limit the model reports, in tokens.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "responses": alias_for("replies"),
        **dict.fromkeys(
            ("debug", "raw", "raw_debug"),
            ignored("use hooks-logging with 'level: debug' and 'include_messages: true'"),
        ),
    }

    replies: list[Reply] = Field(default_factory=list[Reply])
    script: str | None = None
    on_end: Literal["error", "repeat", "cycle", "echo"] = "error"
    model: str = Field(
        default="mock-model", validation_alias=AliasChoices("model", "default_model")
    )
    priority: int = 100
    streaming: bool = True
    chunk_size: int = Field(default=16, ge=1)
    chunk_delay: float = Field(default=0, ge=0)
    delay: float = Field(default=0, ge=0)
    supports_tools: bool = True
    context_window: int = Field(default=200_000, ge=1)
    max_output_tokens: int = Field(default=8_192, ge=1)

    @model_validator(mode="after")
    def _one_source(self) -> MockConfig:
        if self.replies and self.script:
            raise ValueError("'replies' and 'script' are mutually exclusive")
        return self
