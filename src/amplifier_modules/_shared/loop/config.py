"""The settings of every bundled orchestrator (Orchestrator Contract, Configuration)."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, field_validator

from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    several,
)


class LoopConfig(ModuleConfig):
    """Settings of an orchestrator.

    Attributes:
        max_iterations: Provider calls allowed per turn; 0 or -1 for no limit.
        max_repeats: Warn the model when the same tool calls return the same results this many
            times in a row; end the turn after twice as many. 0 for never.
        parallel_tools: Run the tool calls of one answer at the same time.
        streaming: Stream answers; `loop-basic` never does.
        default_provider: Name of the provider to use; by default the one with the lowest
            priority number.
        default_model: Model to use instead of the provider's default.
        debug: Log every step of the loop at DEBUG level.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "use_streaming": alias_for("streaming"),
        **several(
            "extended_thinking reasoning_effort",
            ignored("configure thinking in the config of the provider"),
        ),
        "timeout": ignored("set 'session.budget.max_seconds' in the plan"),
        "priority": ignored("a session has one orchestrator"),
        **several(
            "stream_delay min_delay_between_calls_ms",
            ignored("calls and their output are not slowed down"),
        ),
        **several(
            "goal_stall_threshold goal_busy_stall_window goal_model_role "
            "goal_busy_stall_min_overlap goal_summary_max_reasons goal_provider_preferences "
            "goal_max_transcript_messages goal_tool_content_clip_chars goal_transcript_char_budget",
            ignored("the loop keeps no goals; 'max_repeats' ends a prompt without progress"),
        ),
    }

    max_iterations: int = Field(default=50, ge=-1)
    max_repeats: int = Field(default=3, ge=0)
    parallel_tools: bool = True
    streaming: bool = True
    default_provider: str | None = None
    default_model: str | None = None
    debug: bool = False

    @field_validator("default_provider", "default_model", mode="before")
    @classmethod
    def _empty_means_unset(cls, value: object) -> object:
        return None if value == "" else value
