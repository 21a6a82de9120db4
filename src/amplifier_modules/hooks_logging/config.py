"""Settings of hooks-logging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.published import Published, another_name_of, ignored
from amplifier_modules.hooks_logging.levels import LEVELS, Level

MODULE_ID = "hooks-logging"


class EventFilter(ModuleConfig):
    """Which events to write, as shell patterns for their names.

    Attributes:
        include: An event must match one of these.
        exclude: It must match none of these.
    """

    include: list[str] = Field(default_factory=lambda: ["*"])
    exclude: list[str] = Field(default_factory=list[str])


_UPPER = tuple(level.upper() for level in LEVELS)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LoggingConfig(ModuleConfig):
    """Settings of hooks-logging.

    Attributes:
        path: File to append to, instead of `events.jsonl` in the session's folder. A relative
            path starts at the session's working directory.
        level: Lowest level to write: `error`, `warning`, `info`, or `debug`, which adds every piece
            of a streamed response.
        events: Which of those events to write.
        max_bytes: Size at which the file is renamed to `NAME.1` and a new one started; None lets it
            grow.
        backups: Rotated files to keep.
        max_value_chars: Longer strings are cut to this length, with a note.
        include_messages: Write the messages of each request, not just their number. The transcript
            has them too, and each request repeats all earlier ones.
        priority: Order among the hooks of an event. Late by default, so that the log contains the
            data as changed by others, such as a redacting hook.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "file": another_name_of("path"),
        "exclude_events": another_name_of(
            "events.exclude", schema={"type": ["array", "null"], "items": {"type": "string"}}
        ),
        **dict.fromkeys(
            ("auto_discover", "additional_events"),
            ignored("events of every module are written; filter them with 'events'"),
        ),
        **dict.fromkeys(
            ("mode", "session_log_template"),
            ignored("each session has its own file unless 'path' is set"),
        ),
        "output": ignored("events are written to a file; see 'path'"),
        "strip_raw": ignored("requests are written without messages; see 'include_messages'"),
    }

    path: str | None = None
    level: Annotated[
        Level, BeforeValidator(_lower, json_schema_input_type=Literal[*LEVELS, *_UPPER])
    ] = "info"
    events: EventFilter = Field(default_factory=lambda: EventFilter.model_construct())
    max_bytes: int | None = Field(default=None, ge=1024)
    backups: int = Field(default=3, ge=1, le=1000)
    max_value_chars: int = Field(default=10_000, ge=100)
    include_messages: bool = False
    priority: int = 100
