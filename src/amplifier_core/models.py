"""Data that the kernel and modules exchange: hook results, compaction results, descriptions of
providers, models and modules, and the session status.

`ToolResult` is defined in `_tool_results` and exported here.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from amplifier_core._tool_results import ToolResult
from amplifier_core.message_models import Money
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
    context_injections: list[ContextInjection] = Field(default_factory=list[ContextInjection])

    @field_validator("data", mode="before")
    @classmethod
    def _fields_of_a_model(cls, value: Any) -> Any:
        return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


class CompactionResult(_Model):
    """What a context's `compact()` reports: sizes of the stored history and of the view for a request.

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
