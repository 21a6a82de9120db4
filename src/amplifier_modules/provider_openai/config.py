"""Settings of provider-openai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from amplifier_modules._shared.module.config import Published, alias_for, ignored, several
from amplifier_modules._shared.providers.settings import HTTPProviderConfig


class OpenAIConfig(HTTPProviderConfig):
    """Settings of provider-openai.

    `base_url` may be given with or without ``/v1``. An address other than OpenAI's needs no key,
    and without a `model` the first one the server lists is used.

    Attributes:
        api: ``chat`` for Chat Completions, ``responses`` for the Responses API, which keeps the
            model's reasoning between tool calls; ``auto`` is ``responses`` for OpenAI's own models
            that otherwise do not reason when tools are offered.
        reasoning_summary: Show summaries of the reasoning; ``responses`` only.
        reasoning_effort: How much a reasoning model thinks, in the service's terms.
        tool_references: Load the tools that `tool_search` finds where the conversation refers to them
            (``responses`` only); by default at OpenAI's address, for models from gpt-5.4 on.
        organization: Organization for billing.
        project: Project for billing.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **HTTPProviderConfig.published,
        "reasoning": alias_for("reasoning_effort"),
        "prompt_cache_key": alias_for("extra_body.prompt_cache_key"),
        "prompt_cache_retention": alias_for("extra_body.prompt_cache_retention"),
        "safety_identifier": alias_for("extra_body.safety_identifier"),
        "truncation": ignored("set 'extra_body: {truncation: …}' with 'api: responses'"),
        **several(
            "enable_response_chaining enable_state", ignored("nothing is stored at the service")
        ),
        "enable_long_context": ignored("set 'context_window'"),
        **several(
            "extended_thinking thinking_budget_tokens thinking_budget_buffer",
            ignored("set 'reasoning_effort'"),
        ),
        **several(
            "background background_timeout poll_interval",
            ignored("requests do not run in the background"),
        ),
    }

    api: Literal["auto", "chat", "responses"] = "auto"
    reasoning_effort: str | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    tool_references: bool | None = None
    extra_body: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Merged into every request."
    )
    context_window: int | None = Field(None, gt=0, description="In tokens.")
    max_output_tokens: int | None = Field(None, gt=0, description="In tokens.")
    organization: str | None = None
    project: str | None = None
