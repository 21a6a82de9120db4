"""The file the events go to."""

from __future__ import annotations

import fnmatch
import logging
import os
import stat
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from amplifier_modules._shared.event_json import raw_data
from amplifier_modules._shared.redaction import Redactor, secrets_in
from amplifier_modules.hooks_logging.config import MODULE_ID, EventFilter, LoggingConfig
from amplifier_modules.hooks_logging.plain import to_json

logger = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"
FILE_MODE = 0o600
FOLDER_MODE = 0o700

TWINS = (("input", "tool_input"), ("result", "tool_result"))
"""Keys that carry the same value as another one, for readers of either contract."""


def log_path(config: LoggingConfig, coordinator: Any) -> Path | None:
    """Where to write: the configured path, else in the session's folder, else nowhere."""
    if config.path is not None:
        working_dir = coordinator.get_capability("session.working_dir") or "."
        return Path(working_dir) / Path(config.path).expanduser()
    folder = coordinator.get_capability("session.dir")
    return Path(folder) / FILE_NAME if folder else None


def selects(events: EventFilter, name: str) -> bool:
    """Whether the event of this name is to be written."""
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in events.include):
        return False
    return not any(fnmatch.fnmatchcase(name, pattern) for pattern in events.exclude)


class EventLog:
    """Appends one JSON line per event: ``{"ts", "event", "session_id", "data"}``.

    The file is opened at the first event, readable by its owner only and never through a link. A
    failure to write is reported once, as a warning; it never disturbs the session.

    Args:
        path: The file.
        config: What to write and how.
        session_id: For events that do not carry one.
        secret_names: Environment variables whose values are replaced, whatever they are called.
        redaction: Gives the session's own redaction of events, ``(event, data) -> data``, if it
            has one: some events reach this log as they are because a tool or the model needs
            what they carry.
    """

    def __init__(
        self,
        path: Path,
        config: LoggingConfig,
        session_id: str = "",
        secret_names: Iterable[str] = (),
        redaction: Callable[[], Callable[[str, Any], Any] | None] = lambda: None,
    ) -> None:
        self._path = path
        self._config = config
        self._session_id = session_id
        self._redactor = Redactor(secrets_in(names=secret_names))
        self._redaction = redaction
        self._file: int | None = None
        self._torn = False
        self._closed = False
        self._warned = False
        self._listening: dict[str, Callable[[], None]] = {}

    def listen(self, hooks: Any, names: Iterable[str]) -> None:
        """Write the events of these names from now on, as far as the filter lets them."""
        for name in names:
            if name not in self._listening and selects(self._config.events, name):
                self._listening[name] = hooks.register(
                    name, self.record, priority=self._config.priority, name=MODULE_ID
                )

    @staticmethod
    def names(contributions: Iterable[Any]) -> list[str]:
        """The event names in what modules contribute: each gives a name or a list of them."""
        found: list[str] = []
        for contribution in contributions:
            if isinstance(contribution, str):
                found.append(contribution)
            elif isinstance(contribution, (list, tuple, set, frozenset)):
                given = cast("Iterable[Any]", contribution)
                found += [name for name in given if isinstance(name, str)]
        return found

    async def record(self, event: str, data: Any) -> None:
        """Hook handler: write the event. It has no opinion on what happens next."""
        try:
            self._append(self._line(event, data))
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s: cannot write events to %s: %s. The session goes on without them.",
                    MODULE_ID,
                    self._path,
                    error.strerror or error,
                )

    def close(self) -> None:
        """Stop listening and close the file; a second call does nothing."""
        for unregister in self._listening.values():
            unregister()
        self._listening.clear()
        self._closed = True
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _line(self, event: str, data: Any) -> bytes:
        redact = self._redaction()
        rest = raw_data(data if redact is None else redact(event, data))
        timestamp = rest.pop("timestamp", None) or datetime.now(UTC).isoformat()
        session_id = rest.pop("session_id", None) or self._session_id
        messages = rest.get("messages")
        if isinstance(messages, list) and not self._config.include_messages:
            del rest["messages"]
            rest["message_count"] = len(cast("list[Any]", messages))
        for twin, name in TWINS:
            if twin in rest and rest[twin] is rest.get(name):
                del rest[twin]
        entry = {"ts": timestamp, "event": event, "session_id": session_id, "data": rest}
        text = to_json(entry, redactor=self._redactor, max_chars=self._config.max_value_chars)
        return text.encode("ascii") + b"\n"

    def _append(self, line: bytes) -> None:
        if self._closed:
            return
        if self._file is None:
            self._file = _open(self._path)
            self._torn = _ends_inside_a_line(self._file)
        # A line that an earlier write left unfinished must not swallow this one.
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            written = os.write(self._file, rest)
            self._torn = written < len(rest)
            rest = rest[written:]


def _ends_inside_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _open(path: Path) -> int:
    """Open for appending, without following a link and without waiting for a reader of a pipe.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    for optional in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, optional, 0)
    file = os.open(path, flags, FILE_MODE)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        if hasattr(os, "fchmod"):
            os.fchmod(file, FILE_MODE)
    except OSError:
        os.close(file)
        raise
    return file
