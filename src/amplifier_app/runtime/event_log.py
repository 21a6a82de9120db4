"""The log of events that hooks-logging writes for a session."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from amplifier_support.files import open_regular
from amplifier_support.journal import parse


def read_events(session: Path) -> Iterator[dict[str, Any]]:
    """Yield the events that hooks-logging wrote for a session; lines that cannot be read are left out."""
    numbered = [path for path in session.glob("events.jsonl.*") if path.suffix[1:].isdecimal()]
    rotated = sorted(numbered, key=lambda path: int(path.suffix[1:]), reverse=True)
    for file in [*rotated, session / "events.jsonl"]:
        with contextlib.suppress(OSError), open(open_regular(file, os.O_RDONLY), "rb") as lines:
            for line in lines:
                event = parse(line)
                if event is not None and "event" in event:
                    yield event


def read_time(event: Mapping[str, Any]) -> float | None:
    """When an event happened, in seconds since the epoch; None if its time cannot be read."""
    try:
        return datetime.fromisoformat(event["ts"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
