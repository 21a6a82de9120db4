"""The settings every bundled context takes (Context Contract, Configuration)."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import AliasChoices, ConfigDict, Field

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.published import Published, ignored


class ContextConfig(ModuleConfig):
    """Settings of a context.

    Attributes:
        max_tokens: Budget of a request in tokens, where neither the request nor the provider's
            info (`defaults.context_window`, `defaults.max_output_tokens`) says one.
        compaction_threshold: Share of the budget a request may fill before it is compacted; also
            spelt `compact_threshold`.
        keep_recent_turns: Turns that are kept before anything older. A turn begins with a message
            of the user.
        keep_recent: Messages to keep instead of whole turns.
        strategy: What happens to older messages that do not fit: `truncate` leaves out the oldest,
            `importance` those of least importance, `summarize` has the model sum up what is left
            out.
        summary_tokens: Length of a summary, for `summarize`.
        summary_timeout: Seconds a summary may take; then the oldest messages are left out
            without one.
        summary_model: Model that writes summaries instead of the one the provider asks by default.
        auto_compact: False returns the whole history until `compact()` is called.
    """

    model_config = ConfigDict(frozen=True)

    published: ClassVar[Mapping[str, Published]] = {
        "target_usage": ignored("a request is compacted as far as it has to be"),
        "token_meter": ignored("tokens are counted by what providers report"),
        **dict.fromkeys(
            ("protected_recent", "protected_tool_results", "max_messages"),
            ignored("set 'keep_recent_turns' or 'keep_recent'"),
        ),
        **dict.fromkeys(
            ("truncate_chars", "truncate_boundary", "max_tool_result_bytes"),
            ignored("tools limit their own output; see 'max_output' and 'max_bytes' of theirs"),
        ),
        **dict.fromkeys(
            (
                *("compaction_notice_enabled", "compaction_notice_min_level"),
                "compaction_notice_verbosity",
            ),
            ignored("the model is given a note wherever messages were left out"),
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
    auto_compact: bool = True
