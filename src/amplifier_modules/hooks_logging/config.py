"""Settings of hooks-logging."""

from __future__ import annotations

from pydantic import Field

from amplifier_modules._shared.config import ModuleConfig

MODULE_ID = "hooks-logging"
CAPABILITY = "hooks-logging.log"

STREAMED = (
    "content_block:delta",
    "thinking:delta",
    "provider:stream",
    "llm:stream_*",
    "tool:output",
)
"""Events that come by the thousand and repeat what others tell; left out by default."""


class EventFilter(ModuleConfig):
    """Which events to write, as shell patterns of their names.

    Attributes:
        include: An event must match one of these.
        exclude: And none of these; a list given here replaces the default.
    """

    include: list[str] = Field(default_factory=lambda: ["*"])
    exclude: list[str] = Field(default_factory=lambda: list(STREAMED))


class LoggingConfig(ModuleConfig):
    """Settings of hooks-logging.

    Attributes:
        path: File to append to, instead of `events.jsonl` in the session's folder. A relative
            path starts at the session's working directory.
        events: Which events to write.
        max_value_chars: Longer strings are cut to this length, with a note.
        include_messages: Write the messages of each request, not just how many there are. They
            are in the transcript anyhow, and each request repeats all earlier ones.
        priority: Place among the hooks of an event. Late by default, so that what is written is
            what others, such as a redacting hook, have made of it.
    """

    path: str | None = None
    events: EventFilter = Field(default_factory=lambda: EventFilter.model_construct())
    max_value_chars: int = Field(default=10_000, ge=100)
    include_messages: bool = False
    priority: int = 100
