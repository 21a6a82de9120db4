"""What `metadata.json` says about a session, whatever state the file is in."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.metadata import read_metadata, time_text, utc_time
from amplifier_support.fields import mapping_of
from amplifier_support.usage import dollars

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_GENERATED = re.compile(r"\d{8}-\d{6}-([0-9a-f]{6})")
_LARGEST = 2**53


class SessionSummary(NamedTuple):
    """A session as listed; None where something is unknown.

    A sub-session has a `parent`, the session that spawned it, and an `agent`, its name in the plan.

    Attributes:
        updated: Time of the last update, ISO 8601 in UTC.
        prompts: Number of prompts.
        cost_usd: US dollars, sub-agents included, as text.
        fault: What is wrong with its metadata; None if nothing.
    """

    id: str
    updated: str
    project: str | None = None
    model: str | None = None
    prompts: int | None = None
    title: str | None = None
    parent: str | None = None
    agent: str | None = None
    profile: str | None = None
    cost_usd: str | None = None
    fault: str | None = None

    @property
    def about(self) -> str:
        """What a list shows: its title, of a sub-session also its agent, or what is wrong."""
        if self.fault is not None:
            return f"({self.fault})"
        title = self.title or "(no title)"
        return f"{self.agent}: {title}" if self.agent else title

    @property
    def cost(self) -> Decimal | None:
        """US dollars, sub-agents included."""
        return dollars(self.cost_usd)


def short_id(session_id: str) -> str:
    """The id to show where space is short: of a generated id its random part."""
    generated = _GENERATED.fullmatch(session_id)
    return generated[1] if generated else session_id


def session_ids(root: Path) -> list[str]:
    """The ids of all sessions in `root`.

    Raises:
        SessionError: The folder cannot be read.
    """
    try:
        with os.scandir(root) as entries:
            return [
                entry.name
                for entry in entries
                if ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SessionError(f"cannot read {root}: {error.strerror}") from error


def read_summary(path: Path) -> SessionSummary:
    """The summary of the session in `path`; damaged metadata is named as its fault."""
    data, fault = read_metadata(path)
    return SessionSummary(
        path.name,
        utc_time(data.get("updated")) or utc_time(data.get("created")) or _time_of_folder(path),
        _text(data, "project"),
        _text(data, "model"),
        data.get("prompts"),
        _text(data, "title"),
        _text(data, "parent"),
        _text(data, "agent"),
        _text(data, "profile"),
        _plain(cost_in(data)),
        fault,
    )


def cost_in(metadata: Mapping[str, Any]) -> Decimal | None:
    """What the session has cost so far in US dollars; None if any price is unknown."""
    return (
        None
        if has_unpriced_calls(metadata)
        else dollars(mapping_of(metadata.get("spent")).get("cost_usd"))
    )


def has_unpriced_calls(metadata: Mapping[str, Any]) -> bool:
    """Whether the session has made model calls whose price is unknown."""
    return bool(mapping_of(metadata.get("spent")).get("unpriced"))


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return without_surrogates(value) if isinstance(value, str) else None


def without_surrogates(text: str) -> str:
    """Return text that SQLite and terminals take: `?` for bytes of a path that are not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _plain(amount: Decimal | None) -> str | None:
    return None if amount is None or amount > _LARGEST else f"{amount:f}"


def _time_of_folder(path: Path) -> str:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        seconds = 0.0
    return time_text(seconds)
