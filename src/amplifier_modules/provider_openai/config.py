"""Settings of provider-openai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from amplifier_modules._shared.module.published import Published, another_name_of, ignored
from amplifier_modules._shared.providers.base import HTTPProviderConfig


class OpenAIConfig(HTTPProviderConfig):
    """What a mount plan may say to provider-openai.

    `base_url` may come with or without ``/v1``. With an address that is not OpenAI's no key is
    needed, and without a `model` the first one the server lists is asked.

    Attributes:
        api: Which API is asked: ``chat`` for Chat Completions, ``responses`` for the one that keeps
            the model's reasoning between tool calls; ``auto`` is ``responses`` for those of OpenAI's
            own models that do not reason beside tools otherwise.
        reasoning_summary: Whether a reasoning model shows summaries of it; ``responses`` only.
        reasoning_effort: How much a reasoning model thinks, in the service's own words.
        organization: Organization the calls are counted to.
        project: Project the calls are counted to.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **HTTPProviderConfig.published,
        "reasoning": another_name_of("reasoning_effort"),
        "prompt_cache_key": another_name_of("extra_body.prompt_cache_key"),
        "prompt_cache_retention": another_name_of("extra_body.prompt_cache_retention"),
        "safety_identifier": another_name_of("extra_body.safety_identifier"),
        "truncation": ignored("set 'extra_body: {truncation: …}' with 'api: responses'"),
        **dict.fromkeys(
            ("enable_response_chaining", "enable_state"),
            ignored("nothing is kept with the service"),
        ),
        "enable_long_context": ignored("set 'context_window'"),
        **dict.fromkeys(
            ("extended_thinking", "thinking_budget_tokens", "thinking_budget_buffer"),
            ignored("set 'reasoning_effort'"),
        ),
        **dict.fromkeys(
            ("background", "poll_interval"), ignored("requests do not run in the background")
        ),
    }

    api: Literal["auto", "chat", "responses"] = "auto"
    reasoning_effort: str | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    extra_body: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Merged into every request."
    )
    context_window: int | None = Field(None, gt=0, description="In tokens.")
    max_output_tokens: int | None = Field(None, gt=0, description="In tokens.")
    organization: str | None = None
    project: str | None = None
