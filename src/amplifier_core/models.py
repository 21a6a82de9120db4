"""Data that the kernel and modules exchange: hook and tool results, descriptions of providers, models and
modules, and the session status.
"""

import base64
import binascii
import json
import re
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from amplifier_core.message_models import ImageBlock, Money, TextBlock
from amplifier_core.utils.truncate import sanitize_text
from amplifier_support.clock import local_now

__all__ = [
    "CompactionResult",
    "ConfigField",
    "ContextInjection",
    "HookAction",
    "HookResult",
    "InjectionRole",
    "ModelInfo",
    "ModuleInfo",
    "Pricing",
    "ProviderInfo",
    "SessionStatus",
    "ToolResult",
]

IMAGE_OMITTED = "[image omitted]"
"""Placeholder for an image in results shown to hooks."""


def _normalise_block(item: Any) -> dict[str, Any]:
    block = item.model_dump() if isinstance(item, BaseModel) else item
    if not isinstance(block, dict):
        raise ValueError("invalid tool result content: each block must be a text or image block")
    kind, text = block.get("type"), block.get("text")
    if kind == "image":
        return {"type": "image", "source": _normalise_image(block.get("source"))}
    if kind != "text":
        raise ValueError(
            f"invalid tool result content: block type {kind!r} is neither 'text' nor 'image'"
        )
    if not isinstance(text, str):
        raise ValueError("invalid tool result content: a text block needs a string 'text'")
    return {"type": "text", "text": text}


def _normalise_image(source: Any) -> dict[str, Any]:
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise ValueError(
            "invalid tool result image source: expected {'type': 'base64', 'media_type', 'data'}"
        )
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str) or not re.match("image/.", media_type, re.DOTALL):
        raise ValueError(
            "invalid tool result image media type: expected 'image/<subtype>' in lower case"
        )
    if not isinstance(data, str) or not data:
        raise ValueError("invalid tool result image data: expected non-empty base64")
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"invalid tool result image data: {error}") from None
    return {"type": "base64", "media_type": media_type, "data": data}


def _content(value: Any) -> list[dict[str, Any]] | None:
    """`value` as plain text and image blocks; None if there are none."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError("invalid tool result content: expected a list of text and image blocks")
    return [_normalise_block(item) for item in value] or None


def _json_default(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be serialized as JSON")


class ToolResult(BaseModel):
    """Outcome of a tool (Tool Contract, Data Models).

    ``ToolResult(is_error=True, …)``, the form of the Orchestrator Contract, means
    ``success=False``. A failure without output uses the message of `error` as its output.

    Attributes:
        success: Whether the call succeeded.
        output: Usually a string or a dict.
        error: ``{"message": str, …}`` of a failure.
        content: Text and base64 image blocks for models that can see.
    """

    model_config = ConfigDict(validate_assignment=True, hide_input_in_errors=True, defer_build=True)

    success: bool = True
    output: Any | None = None
    error: dict[str, Any] | None = None
    content: list[TextBlock | ImageBlock] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_is_error(cls, data: Any) -> Any:
        if isinstance(data, dict) and "is_error" in data:
            rest = {key: value for key, value in data.items() if key != "is_error"}
            return {"success": not data["is_error"], **rest}
        return data

    @field_validator("content", mode="before")
    @classmethod
    def _normalise_content(cls, value: Any) -> Any:
        return _content(value)

    def model_post_init(self, context: Any, /) -> None:
        if not self.success and self.output is None and self.error and self.error.get("message"):
            vars(self)["output"] = self.error["message"]

    @model_serializer(mode="wrap")
    def _without_empty_content(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = handler(self)
        if "content" in data:
            content = _content(self.content)
            if content is None:
                del data["content"]
            else:
                data["content"] = content
        return data

    @property
    def is_error(self) -> bool:
        return not self.success

    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """A validated copy, unlike pydantic's own.

        Raises:
            pydantic.ValidationError: `update` is invalid.
        """
        base = super().model_copy(deep=deep)
        return type(self).model_validate({**base.__dict__, **(update or {})})

    def __str__(self) -> str:
        if self.success:
            return str(self.output) if self.output else "Success"
        return "Failed" if self.error is None else self._error_text()

    def _error_text(self) -> str:
        message = "Failed" if self.error is None else self.error.get("message", "Unknown error")
        return f"Error: {message}"

    def get_serialized_output(self) -> str:
        """The text that the model receives: the output, or a placeholder if there is none.

        Raises:
            TypeError: The output is a dict or list that cannot be serialized as JSON.
        """
        if self.output is None:
            text = "Success" if self.success else self._error_text()
        elif isinstance(self.output, (dict, list)):
            text = json.dumps(self.output, default=_json_default)
        else:
            text = str(self.output)
        return sanitize_text(text)

    def safe_hook_presentation(self) -> dict[str, Any]:
        """The result as plain data for hooks, with every image replaced by a notice."""
        data = {"success": self.success, "output": self.output, "error": self.error}
        omitted = {"type": "text", "text": IMAGE_OMITTED}
        content = _content(self.content) or ()
        blocks = [block if block["type"] == "text" else dict(omitted) for block in content]
        return {**data, "content": blocks} if blocks else data


HookAction = Literal["continue", "deny", "modify", "inject_context", "ask_user"]
InjectionRole = Literal["system", "user", "assistant"]


class _Model(BaseModel):
    model_config = ConfigDict(defer_build=True)


class ContextInjection(_Model):
    """Text that a hook adds to the conversation, with the name of the hook and the event."""

    content: str
    role: InjectionRole = "system"
    ephemeral: bool = False
    append_to_last_tool_result: bool = False
    hook_name: str = "unknown"
    event: str = ""


class HookResult(_Model):
    """The result of a hook (Hook Contract, HookResult Actions).

    Attributes:
        action: What to do.
        data: The event's new data; required for `modify` to have an effect.
        reason: Reason for `deny`.
        context_injection: Text to add to the conversation, with its role.
        ephemeral: Whether the injection is for the next request only and is not stored.
        append_to_last_tool_result: Whether to append an ephemeral injection to the last tool result.
        context_injections: One item for each injection of a merged result.
        changes: The handlers that answered `modify`, in order, each with the data it returned; set by the
            registry.
        approval_prompt: The question of `ask_user`, with its options, timeout in seconds, and
            decision after a timeout.
        suppress_output: Whether to keep the hook's output out of the transcript.
        user_message: Message for the user, with its level and source.
    """

    action: HookAction = "continue"
    data: dict[str, Any] | None = None
    reason: str | None = None
    context_injection: str | None = None
    context_injection_role: InjectionRole = "system"
    ephemeral: bool = False
    approval_prompt: str | None = None
    approval_options: list[str] | None = None
    approval_timeout: float = 300.0
    approval_default: Literal["allow", "deny"] = "deny"
    suppress_output: bool = False
    user_message: str | None = None
    user_message_level: Literal["info", "warning", "error"] = "info"
    user_message_source: str | None = None
    append_to_last_tool_result: bool = False
    # Copied for each result; a factory's signature would be inspected at each `model_construct`.
    context_injections: list[ContextInjection] = []
    changes: list[tuple[str, dict[str, Any]]] = Field(default=[], exclude=True, repr=False)

    @field_validator("data", mode="before")
    @classmethod
    def _fields_of_a_model(cls, value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def to_injection(result: HookResult, hook_name: str, event: str) -> ContextInjection:
    """The single injection of a hook's result."""
    return ContextInjection.model_construct(
        content=result.context_injection or "",
        role=result.context_injection_role,
        ephemeral=result.ephemeral,
        append_to_last_tool_result=result.append_to_last_tool_result,
        hook_name=hook_name,
        event=event,
    )


def join_injections(items: list[ContextInjection], **more: Any) -> HookResult:
    """One result with all of `items`, with the role of the first, and the fields in `more`."""
    return HookResult.model_construct(
        action="inject_context",
        context_injection="\n\n".join(item.content for item in items),
        context_injection_role=items[0].role,
        ephemeral=items[0].ephemeral,
        append_to_last_tool_result=any(item.append_to_last_tool_result for item in items),
        context_injections=items,
        **more,
    )


class CompactionResult(_Model):
    """The report of a context's `compact()`: sizes of the stored history and of the view for a
    request.

    Sizes are in tokens and in messages. The stored history itself is not changed.
    """

    strategy: str
    before_tokens: int
    before_messages: int
    after_tokens: int
    after_messages: int

    @property
    def removed_tokens(self) -> int:
        return max(0, self.before_tokens - self.after_tokens)

    @property
    def removed_messages(self) -> int:
        return self.before_messages - self.after_messages


class ConfigField(_Model):
    """A setting that an app asks for when configuring a provider."""

    id: str
    display_name: str
    prompt: str
    field_type: Literal["text", "secret", "choice", "boolean"] = "text"
    env_var: str | None = None
    choices: list[str] | None = None
    required: bool = True
    default: str | None = None
    show_when: dict[str, str] | None = None
    requires_model: bool = False


class Pricing(_Model):
    """Price of a model, in `currency` per million tokens."""

    input_per_million: float
    output_per_million: float
    cache_read_per_million: float | None = None
    cache_write_per_million: float | None = None
    currency: str = "USD"

    @field_validator("currency")
    @classmethod
    def _iso_4217(cls, value: str) -> str:
        if len(value) != 3 or not (value.isascii() and value.isalpha() and value.isupper()):
            raise ValueError(
                f"currency must be three upper-case letters such as 'USD' (got {value!r})"
            )
        return value


class ModelInfo(_Model):
    """A model of a provider; window and output limit in tokens."""

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str] = Field(default_factory=list[str])
    defaults: dict[str, Any] = Field(default_factory=dict)
    pricing: Pricing | None = None


class ProviderInfo(_Model):
    """Description of a provider and of the settings it needs.

    `defaults` may hold ``context_window`` and ``max_output_tokens`` (tokens), from which
    context managers compute their budget (Context Contract, get_messages_for_request).
    """

    id: str
    display_name: str
    credential_env_vars: list[str] = Field(default_factory=list[str])
    capabilities: list[str] = Field(default_factory=list[str])
    defaults: dict[str, Any] = Field(default_factory=dict)
    config_fields: list[ConfigField] = Field(default_factory=list[ConfigField])


class ModuleInfo(_Model):
    """A module that can be loaded."""

    id: str
    name: str
    version: str
    type: Literal["orchestrator", "provider", "tool", "context", "hook", "resolver"]
    mount_point: str
    description: str
    config_schema: dict[str, Any] | None = None


class SessionStatus(_Model):
    """Status of a session. Times are local and without time zone."""

    session_id: str
    # Not `datetime.now` itself: pydantic would inspect its signature, which takes milliseconds
    # at every start for a function written in C.
    started_at: datetime = Field(default_factory=local_now)
    ended_at: datetime | None = None
    status: Literal["running", "completed", "failed", "cancelled"] = "running"
    total_messages: int = 0
    tool_invocations: int = 0
    tool_successes: int = 0
    tool_failures: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    cost_usd: Money | None = None
    last_activity: datetime | None = None
    last_error: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The status as JSON-compatible data, without fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)
