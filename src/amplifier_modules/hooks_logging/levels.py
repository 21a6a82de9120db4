"""The level of an event, by its name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")

_PATTERNS: tuple[tuple[Level, tuple[str, ...]], ...] = (
    # These are very many and repeat what other events report.
    ("debug", ("content_block:delta", "thinking:delta", "provider:stream", "llm:stream_*")),
    ("error", ("*:error", "*:failed", "*_failed")),
    (
        "warning",
        (
            *("approval:denied", "policy:violation", "cancel:*", "budget:*"),
            *("provider:retry", "provider:throttle", "provider:tool_sequence_repaired"),
        ),
    ),
)


@lru_cache(maxsize=256)  # Asked for every event of every session.
def level_of(event: str) -> Level:
    """The level of the event with this name."""
    for level, patterns in _PATTERNS:
        if any(fnmatchcase(event, pattern) for pattern in patterns):
            return level
    return "info"


def reaches(event: str, least: Level) -> bool:
    """Whether the event with this name is at least of that level."""
    return LEVELS.index(level_of(event)) >= LEVELS.index(least)
