"""Settings of provider-anthropic."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, model_validator

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    refused,
    several,
)
from amplifier_modules._shared.providers.settings import HTTPProviderConfig

DEFAULT_MODEL = "claude-sonnet-5-5"

Effort = Literal["low", "medium", "high", "xhigh", "max"]
ThinkingType = Literal["adaptive", "enabled", "disabled"]


class ThinkingConfig(ModuleConfig):
    """True if the model thinks before it answers, and how much.

    Short forms: `true`, `false` or `adaptive`. If unset, each model uses its default.

    Attributes:
        enabled: On or off.
        type: `adaptive` lets the model decide how much, `enabled` uses a budget.
        budget_tokens: Budget for models that support one; others think adaptively.
        display: Whether to return summaries of the thinking, or only signatures.
        drop_changed: Let the service drop earlier thinking if something before it has changed,
            instead of refusing the request; set it to false for gateways that refuse this beta.
    """

    enabled: bool = True
    type: ThinkingType | None = None
    budget_tokens: int | None = Field(default=None, ge=1024)
    display: Literal["summarized", "omitted"] = "summarized"
    drop_changed: bool = True

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        if self.type == "disabled":
            self.enabled = False
        if self.budget_tokens is not None and (self.type == "adaptive" or not self.enabled):
            raise ValueError("budget_tokens needs thinking of type 'enabled', not 'adaptive'")
        return self


class WebSearchConfig(ModuleConfig):
    """Searches of the web that the service makes for the model; `true` and `false` are short forms.

    Attributes:
        enabled: Offer them to the model.
        max_uses: Limit of searches in a request.
        user_location: The user's approximate location, with `city`, `region`, `country` or `timezone`.
    """

    enabled: bool = False
    max_uses: int | None = Field(default=None, ge=1)
    user_location: dict[str, str] | None = None


def _spelled_out(value: Any) -> Any:
    if isinstance(value, bool):
        return {"enabled": value}
    if isinstance(value, str):
        return {"type": value}
    return value


def _as_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class AnthropicConfig(HTTPProviderConfig):
    """Config of `provider-anthropic`.

    `api_key`, `auth_token` and `base_url` default to ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN and
    ANTHROPIC_BASE_URL.

    Attributes:
        thinking: Whether the model thinks first: true, false, `adaptive` or details.
        auth_token: Bearer token, instead of a key.
        max_tokens: Longest response; by default 32,000 or the model's limit, if lower.
        effort: Effort level, for models that support it.
        prompt_caching: Off, on, or the lifetime of a cached prompt (on is 5 minutes).
        beta: Names for the `anthropic-beta` header, as a list or with commas between them.
        api_version: The `anthropic-version` header; by default the newest compatible one.
        tool_references: Load the tools that `tool_search` finds by a reference in the conversation; by
            default at Anthropic's address.
        web_search: Searches of the web by the service: true, false or details.
        client: `builtin` for the HTTP client of Amplifier, `sdk` for that of the `anthropic` SDK.
        transport: Anthropic's own API or a compatible one over HTTP, or Claude on Amazon Bedrock or
            Google Vertex AI through the `anthropic` SDK (extras `bedrock` and `vertex`).
        region: Cloud region, for `bedrock` and `vertex`.
        project_id: Google Cloud project, for `vertex`.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **HTTPProviderConfig.published,
        "extended_thinking": alias_for("thinking.enabled", schema={"type": ["boolean", "null"]}),
        "thinking_type": alias_for("thinking.type"),
        "thinking_budget_tokens": alias_for("thinking.budget_tokens"),
        "thinking_display": alias_for("thinking.display"),
        "reasoning_effort": alias_for("effort"),
        "enable_prompt_caching": alias_for("prompt_caching"),
        "beta_headers": alias_for("beta"),
        "enable_web_search": alias_for("web_search.enabled"),
        "web_search_max_uses": alias_for("web_search.max_uses"),
        "web_search_user_location": alias_for("web_search.user_location"),
        "cache_stable_region_ttl_1h": ignored("set 'prompt_caching: 1h'"),
        "cache_infer_stability_from_history": ignored("set 'prompt_caching'"),
        "thinking_budget_buffer": ignored("set 'max_tokens'"),
        "thinking_prefix_mismatch_behavior": ignored("set 'thinking: {drop_changed: …}'"),
        "inference_geo": refused(
            "requests cannot be limited to a region; use 'transport: bedrock' or 'vertex' "
            "with 'region'"
        ),
        "enable_1m_context": ignored("the context window is the model's own"),
        "auth_file": ignored("set 'api_key' or 'auth_token'"),
        **several(
            "fallback_on_overload fallback_retry_count fallback_cooldown_seconds fallback_models "
            "fallback_sonnet_model fallback_haiku_model persist_fallback_state fallback_state_path "
            "refusal_fallback_enabled refusal_fallback_model",
            ignored("list other providers under 'fallbacks' of the plan"),
        ),
        **several(
            "speed task_budget_tokens computer_use_tool_type computer_batch_actions "
            "extra_request_params close_timeout",
            ignored("not configurable"),
        ),
    }

    model: str = Field(
        default=DEFAULT_MODEL, min_length=1, validation_alias=AliasChoices("model", "default_model")
    )
    auth_token: SecretStr | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    thinking: Annotated[
        ThinkingConfig | None,
        BeforeValidator(
            _spelled_out,
            json_schema_input_type=ThinkingConfig | bool | ThinkingType | None,
        ),
    ] = None
    effort: Effort | None = None
    prompt_caching: bool | Literal["5m", "1h"] = True
    beta: Annotated[
        list[str], BeforeValidator(_as_list, json_schema_input_type=list[str] | str)
    ] = Field(default_factory=list[str])
    api_version: str | None = None
    tool_references: bool | None = None
    web_search: Annotated[
        WebSearchConfig | None,
        BeforeValidator(_spelled_out, json_schema_input_type=WebSearchConfig | bool | None),
    ] = None
    client: Literal["builtin", "sdk"] = "builtin"
    transport: Literal["http", "bedrock", "vertex"] = "http"
    region: str | None = None
    project_id: str | None = None
