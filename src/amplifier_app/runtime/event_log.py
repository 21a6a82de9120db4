"""The log of events that hooks-logging writes for a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from amplifier_support.journal import readable_records
from amplifier_support.private_files import read_regular


def read_events(session: Path) -> list[dict[str, Any]]:
    """The events that hooks-logging wrote for a session; lines that cannot be read are left out."""
    events: list[dict[str, Any]] = []
    numbered = [path for path in session.glob("events.jsonl.*") if path.suffix[1:].isdecimal()]
    rotated = sorted(numbered, key=lambda path: int(path.suffix[1:]), reverse=True)
    for file in [*rotated, session / "events.jsonl"]:
        try:
            found = readable_records(read_regular(file))
        except (OSError, ValueError):
            continue
        events += [event for event in found if "event" in event]
    return events


def time_of(event: Mapping[str, Any]) -> float | None:
    """When an event happened, in seconds since the epoch; None if its time cannot be read."""
    try:
        return datetime.fromisoformat(event["ts"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
