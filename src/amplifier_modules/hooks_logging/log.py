"""Write events as lines of a file."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from amplifier_modules._shared.privacy.event_json import raw_data, to_json
from amplifier_modules.hooks_logging.config import MODULE_ID, LoggingConfig
from amplifier_modules.hooks_logging.file import LogFile
from amplifier_modules.hooks_logging.levels import level_of, reaches
from amplifier_support.clock import utc_now
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import SESSION_DIR, WORKING_DIR, Capability

logger = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"

TWINS = (("input", "tool_input"), ("result", "tool_result"))
"""Keys with the same value as another one, for readers of either contract."""


def log_path(config: LoggingConfig, coordinator: Any) -> Path | None:
    """The file to write: the configured path, otherwise in the session's folder, otherwise None."""
    if config.path is not None:
        working_dir = WORKING_DIR.of(coordinator) or "."
        return Path(working_dir) / Path(config.path).expanduser()
    folder = SESSION_DIR.of(coordinator)
    return Path(folder) / FILE_NAME if folder else None


def selects(config: LoggingConfig, name: str) -> bool:
    """Whether the event with this name is written."""
    events = config.events
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in events.include):
        return False
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in events.exclude):
        return False
    return reaches(name, config.level)


class EventLog:
    """Append one JSON line per event: ``{"ts", "level", "event", "session_id", "data"}``.

    The file is opened at the first event, readable by its owner only and never through a link. A
    failure to write is reported once, as a warning; it never disturbs the session.

    Args:
        path: The file.
        config: What to write and how.
        session_id: For events without one.
        secrets: Values that are always replaced.
        redaction: Returns the session's own redaction of events, ``(event, data) -> data``, if it
            has one: some events reach this log unchanged because a tool or the model needs their
            data.
    """

    def __init__(
        self,
        path: Path,
        config: LoggingConfig,
        session_id: str = "",
        secrets: Iterable[str] = (),
        redaction: Callable[[], Callable[[str, Any], Any] | None] = lambda: None,
    ) -> None:
        self._file = LogFile(path, config.max_bytes, config.backups)
        self._config = config
        self._session_id = session_id
        self._redactor = Redactor(secrets)
        self._redaction = redaction
        self._closed = False
        self._warned = False
        self._listening: dict[str, Callable[[], None]] = {}

    def listen(self, hooks: Any, names: Iterable[str]) -> None:
        """Start writing the events with these names, as far as the filter allows."""
        for name in names:
            if name not in self._listening and selects(self._config, name):
                self._listening[name] = hooks.register(
                    name, self.record, priority=self._config.priority, name=MODULE_ID
                )

    async def record(self, event: str, data: Any) -> None:
        """Handle an event: write it."""
        if self._closed:
            return
        try:
            self._file.append(self._line(event, data))
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s: cannot write events to %s: %s. The session continues without a log.",
                    MODULE_ID,
                    self._file.path,
                    error.strerror or error,
                )

    def close(self) -> None:
        """Stop listening and close the file; a second call does nothing."""
        for unregister in self._listening.values():
            unregister()
        self._listening.clear()
        self._closed = True
        self._file.close()

    def _line(self, event: str, data: Any) -> bytes:
        redact = self._redaction()
        rest = raw_data(data if redact is None else redact(event, data))
        timestamp = rest.pop("timestamp", None) or utc_now().isoformat()
        session_id = rest.pop("session_id", None) or self._session_id
        messages = rest.get("messages")
        if isinstance(messages, list) and not self._config.include_messages:
            del rest["messages"]
            rest["message_count"] = len(cast("list[Any]", messages))
        for twin, name in TWINS:
            if twin in rest and rest[twin] is rest.get(name):
                del rest[twin]
        entry = {
            "ts": timestamp,
            "level": level_of(event),
            "event": event,
            "session_id": session_id,
            "data": rest,
        }
        text = to_json(entry, redactor=self._redactor, max_chars=self._config.max_value_chars)
        return text.encode("ascii") + b"\n"


LOG = Capability[EventLog]("hooks-logging.log")
