"""The settings of every bundled context (Context Contract, Configuration)."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field

from amplifier_modules._shared.module.config import ModuleConfig, Published, ignored, several


class ContextConfig(ModuleConfig):
    """Settings of a context.

    Attributes:
        max_tokens: Token budget of a request if neither the request nor the provider's info
            (`defaults.context_window`, `defaults.max_output_tokens`) sets one.
        compaction_threshold: Fraction of the budget a request may fill before it is compacted; also
            spelled `compact_threshold`.
        keep_recent_turns: Turns that are kept before anything older. A turn begins with a user
            message.
        keep_recent: Number of messages to keep, instead of whole turns.
        strategy: How to handle older messages that do not fit: `truncate` drops the oldest,
            `importance` the least important, `summarize` replaces them with a summary by the
            model.
        summary_tokens: Maximum length of a summary in tokens, for `summarize`.
        summary_timeout: Time limit for a summary in seconds; then the oldest messages are dropped
            without one.
        summary_model: Model that writes summaries and titles, instead of the provider's default.
        titles: Source of the title of a chat's session: the first `prompt`, or the `model`, which is
            asked after its first answers, until it has written one.
        auto_compact: If false, return the whole history until `compact()` is called.
    """

    model_config = ConfigDict(frozen=True)

    published: ClassVar[Mapping[str, Published]] = {
        "target_usage": ignored("a request is compacted only as far as necessary"),
        "token_meter": ignored("tokens are counted from the usage that providers report"),
        **several(
            "protected_recent protected_tool_results max_messages",
            ignored("set 'keep_recent_turns' or 'keep_recent'"),
        ),
        **several(
            "truncate_chars truncate_boundary max_tool_result_bytes",
            ignored("tools limit their own output; see their 'max_output' and 'max_bytes'"),
        ),
        **several(
            "compaction_notice_enabled compaction_notice_min_level compaction_notice_verbosity "
            "compaction_notice_token_reserve",
            ignored("the model gets a note wherever messages were dropped"),
        ),
    }

    max_tokens: int = Field(default=100_000, gt=0)
    compaction_threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        validation_alias=AliasChoices("compaction_threshold", "compact_threshold"),
    )
    keep_recent_turns: int = Field(default=4, ge=1)
    keep_recent: int | None = Field(default=None, ge=1)
    strategy: Literal["truncate", "summarize", "importance"] = "truncate"
    summary_tokens: int = Field(default=1_000, ge=100)
    summary_timeout: float = Field(default=60.0, gt=0)
    summary_model: str | None = Field(default=None, min_length=1)
    titles: Literal["model", "prompt"] = "prompt"
    auto_compact: bool = True
