"""Settings of context-persistent."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.module.published import Published, another_name_of, ignored

MODULE_ID = "context-persistent"


class PersistentContextConfig(ContextConfig):
    """What a mount plan may set for `context-persistent`.

    Attributes:
        path: Conversation file, instead of `context.jsonl` in the session's folder; relative to
            the session's working directory. `{session_id}` is replaced with the session's id;
            without it, all sessions with this path share one conversation, one session at a time.
    """

    published: ClassVar[Mapping[str, Published]] = {
        **ContextConfig.published,
        "transcript_path": another_name_of("path"),
        "memory_files": ignored("use hooks-context-files, which reads AGENTS.md and other files"),
    }

    path: str | None = Field(default=None, min_length=1)
