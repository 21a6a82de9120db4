"""Data the kernel and modules exchange: hook results, compaction results, provider and model facts,
session status.

`ToolResult` lives in `tool_results` and is reachable from here.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from amplifier_core._tool_results import ToolResult
from amplifier_core.message_models import Money

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
    """One text a hook adds to the conversation, and who added it on which event."""

    content: str
    role: InjectionRole = "system"
    ephemeral: bool = False
    append_to_last_tool_result: bool = False
    hook_name: str = "unknown"
    event: str = ""


class HookResult(_Model):
    """What a hook wants to happen (Hook Contract, HookResult Actions).

    Attributes:
        action: What to do.
        data: The event's data as it goes on; required for `modify` to change anything.
        reason: Why, for `deny`.
        context_injection: Text to add to the conversation, with its role.
        ephemeral: The injection is for the next request only and is not stored.
        append_to_last_tool_result: Put an ephemeral injection behind the last tool result.
        context_injections: One item for each injection of a merged result.
        approval_prompt: The question of `ask_user`, with its options, seconds to wait, and
            what happens when nobody answers.
        suppress_output: The hook's own output is not for the transcript.
        user_message: Text for the user, with its level and who it is from.
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
    """What a context's `compact()` leaves of the stored history in the view a request gets.

    Sizes are in tokens and in messages. The stored history itself is never changed.
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
    """A question an app asks to configure a provider."""

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
    """What a model costs, in `currency` per million tokens."""

    input_per_million: float
    output_per_million: float
    cache_read_per_million: float | None = None
    cache_write_per_million: float | None = None
    currency: str = "USD"

    @field_validator("currency")
    @classmethod
    def _iso_4217(cls, value: str) -> str:
        if len(value) != 3 or not (value.isascii() and value.isalpha() and value.isupper()):
            raise ValueError(f"currency {value!r} is not three upper-case letters, like 'USD'")
        return value


class ModelInfo(_Model):
    """A model a provider offers; window and output limit in tokens."""

    id: str
    display_name: str
    context_window: int
    max_output_tokens: int
    capabilities: list[str] = Field(default_factory=list[str])
    defaults: dict[str, Any] = Field(default_factory=dict)
    pricing: Pricing | None = None


class ProviderInfo(_Model):
    """A provider, and what it needs to be configured.

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
    """Where a session stands. Times are local and naive."""

    session_id: str
    # Not `datetime.now` itself: pydantic would read its signature, and for a function written in C
    # that takes milliseconds of every start.
    started_at: datetime = Field(default_factory=lambda: datetime.now())
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
        """JSON-ready data without what is None."""
        return self.model_dump(mode="json", exclude_none=True)
