"""The summary of a session in `metadata.json`, whatever state the file is in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from amplifier_app.base.errors import SessionError
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_support import clock
from amplifier_support.fields import to_mapping
from amplifier_support.files import read_regular
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import dollars

SCHEMA_VERSION = 2

RESULT_FILE, WAITING_FILE = "run.json", "waiting.jsonl"
"""Files of a session, see `background` and `waiting`; most runs only look whether they exist."""

_LARGEST = 2**53
_MAX_BYTES = 16_000_000


class Metadata(NamedTuple):
    """The metadata of a session.

    Attributes:
        values: The valid ones; without a readable file only what the folder shows.
        fault: What is wrong with the file; None if nothing.
    """

    values: dict[str, Any]
    fault: str | None = None


def read_metadata(path: Path) -> Metadata:
    """The metadata of the session in `path`. A session whose metadata is lost can be resumed."""
    lost: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "id": path.name}
    file = path / "metadata.json"
    try:
        if file.stat().st_size > _MAX_BYTES:
            return Metadata(lost, "metadata is too large")
        data = json.loads(read_regular(file))
    except FileNotFoundError:
        return Metadata(lost, "metadata is missing")
    except OSError as error:
        return Metadata(lost, f"metadata is unreadable: {error.strerror}")
    # A number of too many digits, or too many levels of nesting.
    except (ValueError, RecursionError):
        return Metadata(lost, "metadata is damaged")
    if not isinstance(data, dict):
        return Metadata(lost, "metadata is damaged")
    return check_metadata(cast("dict[str, Any]", data))


def check_metadata(data: dict[str, Any]) -> Metadata:
    """The valid values of metadata, in their present form."""
    # Version 1 counted prompts as turns.
    if "turns" in data:
        data.setdefault("prompts", data.pop("turns"))
    invalid = [name for name in data if name in _IS_VALID and not _IS_VALID[name](data[name])]
    values = {name: value for name, value in data.items() if name not in invalid}
    if isinstance(title := values.get("title"), str):
        # Earlier versions saved it as it was.
        values["title"] = redact(title)
    if isinstance(name := values.get("name"), str) and (name := one_line(redact(name))):
        # From the user, or from a module such as the published hooks-session-naming.
        values["title"] = name
    version = values.get("schema_version", 1)
    if version > SCHEMA_VERSION:
        return Metadata(values, f"unsupported schema version {version}")
    if invalid:
        what = "an invalid value" if len(invalid) == 1 else "invalid values"
        return Metadata(values, f"metadata has {what}: {', '.join(invalid)}")
    return Metadata(values)


def time_text(seconds: float) -> str:
    """A time as metadata has it, ISO 8601 in UTC: such times compare as text.

    Args:
        seconds: The time in seconds since the epoch.
    """
    return clock.utc_time(seconds).isoformat(timespec="milliseconds")


def utc_time(value: object) -> str | None:
    """A time of the metadata as `time_text` writes it; None if it is not one."""
    if not isinstance(value, str):
        return None
    try:
        return time_text(datetime.fromisoformat(value).timestamp())
    except (ValueError, OverflowError, OSError):
        return None


# What is valid


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    # Not NaN, which is smaller than nothing.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_LARGEST < value < _LARGEST
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _mapping_check(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, dict) and all(map(is_valid, cast("dict[str, object]", value).values()))
    )


def _or_none(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_valid(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _is_number(value)


def _is_project(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    noted = cast("dict[str, object]", value)
    sources = noted.get("sources", [])
    return (
        _is_text(noted.get("folder"))
        and isinstance(sources, list)
        and all(map(_is_text, cast("list[object]", sources)))
    )


_IS_VALID: Mapping[str, Callable[[object], bool]] = {
    "schema_version": lambda value: _is_count(value) and value != 0,
    **dict.fromkeys(("created", "updated"), lambda value: utc_time(value) is not None),
    **dict.fromkeys(("project", "profile", "plan_digest", "provider", "parent"), _is_text),
    **dict.fromkeys(("title", "name", "model", "mode", "module_mode", "agent"), _or_none(_is_text)),
    **dict.fromkeys(("prompts", "turn_count", "depth", "title_requests"), _is_count),
    "usage": _mapping_check(_is_count),
    # Null until a turn has ended, with an orchestrator that does not count.
    "spent": _or_none(_mapping_check(_is_scalar)),
    "budget": _mapping_check(_or_none(_is_number)),
    **dict.fromkeys(("modules", "chosen"), _mapping_check(_is_text)),
    "prices": lambda value: isinstance(value, list) and all(map(_mapping_check(_is_text), value)),
    **dict.fromkeys(("forked_from", "spawned_with"), lambda value: isinstance(value, dict)),
    "trusted_project": _is_project,
}


ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_GENERATED = re.compile(r"\d{8}-\d{6}-([0-9a-f]{6})")


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
        """The text for a list: its title, of a sub-session also its agent, or its fault."""
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
    """Return the cost of the session so far in US dollars; None if any price is unknown."""
    spent = to_mapping(metadata.get("spent"))
    return None if spent.get("unpriced") else dollars(spent.get("cost_usd"))


def has_unpriced_calls(metadata: Mapping[str, Any]) -> bool:
    """Return True if the session has made model calls whose price is unknown."""
    return bool(to_mapping(metadata.get("spent")).get("unpriced"))


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
