"""Write events as lines of a file."""

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from amplifier_core.events import ALL_EVENTS
from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    several,
)
from amplifier_modules._shared.module.declaration import Listening
from amplifier_modules._shared.module.spans import announced_events
from amplifier_modules._shared.privacy import LogCopy, raw_data, session_redactor
from amplifier_support.clock import utc_now
from amplifier_support.files import make_private_folder, open_locked, open_private
from amplifier_support.journal import ends_inside_line
from amplifier_support.session_capabilities import (
    REDACT_EVENT,
    SESSION_DIR,
    WORKING_DIR,
    Capability,
)

logger = logging.getLogger(__name__)


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


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(maxsize=256)  # Asked for every event of every session.
def choose_level(event: str) -> Level:
    """The level of the event with this name."""
    for level, patterns in _PATTERNS:
        if _matches(event, patterns):
            return level
    return "info"


MODULE_ID = "hooks-logging"


class EventFilter(ModuleConfig):
    """Which events to write, as shell patterns for their names.

    Attributes:
        include: An event must match one of these.
        exclude: It must match none of these.
    """

    include: list[str] = Field(default=["*"])
    exclude: list[str] = Field(default=[])


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
        "file": alias_for("path"),
        "exclude_events": alias_for(
            "events.exclude", schema={"type": ["array", "null"], "items": {"type": "string"}}
        ),
        **several(
            "auto_discover additional_events",
            ignored("events of every module are written; filter them with 'events'"),
        ),
        **several(
            "mode session_log_template",
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


LOCK_SECONDS = 1.0
_POLL_SECONDS = 0.01


class LogFile:
    """Append whole lines to a file, readable by its owner only and never through a link.

    With a limit the file is rotated before the line that would exceed it: it becomes `NAME.1`, the
    previous `NAME.1` becomes `NAME.2` and so on. No line is split or lost: a writer holds a lock
    or, if the lock is unavailable, does not rotate. A reader continues with the file it has open,
    and finds the rest under the next name.

    Args:
        path: The file.
        max_bytes: The limit; None for none.
        backups: Rotated files to keep.
    """

    def __init__(self, path: Path, max_bytes: int | None, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._file: int | None = None
        self._torn = False
        self._warned = False

    def append(self, line: bytes) -> None:
        """Write a line, including its line end.

        Raises:
            OSError: It cannot be written.
        """
        if self._max_bytes is None:
            self._write(line)
            return
        with self._alone() as alone:
            self._follow()
            if alone and self._is_full(len(line)):
                self._rotate()
            self._write(line)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> None:
        file = self._open_file()
        # Start a new line after one that an earlier write left incomplete.
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            written = os.write(file, rest)
            self._torn = written < len(rest)
            rest = rest[written:]

    def _open_file(self) -> int:
        if self._file is None:
            make_private_folder(self.path.parent)
            self._file = open_private(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self._torn = ends_inside_line(self._file)
        return self._file

    @contextlib.contextmanager
    def _alone(self) -> Any:
        """Keep other processes from writing and rotating; yields False if that fails."""
        lock = None
        with contextlib.ExitStack() as held:
            try:
                make_private_folder(self.path.parent)
                lock = self._wait_for_lock()
                held.callback(os.close, lock)
            except OSError as error:
                reason = error.strerror or error
                self._warn(f"is not rotated, its lock is unavailable: {reason}")
            yield lock is not None

    def _wait_for_lock(self) -> int:
        name = f"{self.path}.lock"
        end = time.monotonic() + LOCK_SECONDS
        while (descriptor := open_locked(name)) is None:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds it", name)
            time.sleep(_POLL_SECONDS)
        return descriptor

    def _follow(self) -> None:
        """Reopen the file if another process has rotated it."""
        if self._file is None:
            return
        try:
            current = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            self.close()
            return
        if not os.path.samestat(current, os.fstat(self._file)):
            self.close()

    def _is_full(self, more: int) -> bool:
        size = os.fstat(self._open_file()).st_size
        return size > 0 and size + more > (self._max_bytes or 0)

    def _rotate(self) -> None:
        # Close it first: some systems do not rename open files.
        self.close()
        try:
            for number in range(self._backups - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
            os.replace(self.path, f"{self.path}.1")
        except OSError as error:
            self._warn(f"cannot be rotated and keeps growing: {error.strerror or error}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("The log %s %s", self.path, what)


FILE_NAME = "events.jsonl"

TWINS = (("input", "tool_input"), ("result", "tool_result"))
"""Keys with the same value as another one, for readers of either contract."""


def _log_path(config: LoggingConfig, coordinator: Any) -> Path | None:
    """The file to write: the configured path, otherwise in the session's folder, otherwise None."""
    if config.path is not None:
        working_dir = WORKING_DIR.of(coordinator) or "."
        return Path(working_dir) / Path(config.path).expanduser()
    folder = SESSION_DIR.of(coordinator)
    return Path(folder) / FILE_NAME if folder else None


@lru_cache(maxsize=256)
def select(
    names: tuple[str, ...], level: Level, include: tuple[str, ...], exclude: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of the events that are written; see `LoggingConfig`."""
    return tuple(
        name
        for name in names
        if _matches(name, include)
        and not _matches(name, exclude)
        and LEVELS.index(choose_level(name)) >= LEVELS.index(level)
    )


class EventLog:
    """Append one JSON line per event: ``{"ts", "level", "event", "session_id", "data"}``.

    The file is opened at the first event, readable by its owner only and never through a link. A
    failure to write is reported once, as a warning; it never disturbs the session.

    Args:
        coordinator: See `amplifier_core.coordinator.ModuleCoordinator`.
        path: The file.
        config: What to write and how.
    """

    def __init__(self, coordinator: Any, path: Path, config: LoggingConfig) -> None:
        self._coordinator = coordinator
        self._file = LogFile(path, config.max_bytes, config.backups)
        self._config = config
        self._copy = LogCopy(session_redactor(coordinator), config.max_value_chars)
        self._closed = False
        self._warned = False
        self._listening = Listening(coordinator, MODULE_ID, config.priority)

    def listen(self, names: Iterable[str]) -> None:
        """Start writing the events with these names, as far as the filter allows."""
        events = self._config.events
        rules = self._config.level, (*events.include,), (*events.exclude,)
        for name in select((*names,), *rules):
            self._listening.on(name, self.record)

    async def record(self, event: str, data: Any) -> None:
        """Handle an event: write it."""
        if self._closed:
            return
        try:
            self._file.append(self._line(event, data))
        except OSError as error:
            if not self._warned:
                self._warned = True
                text = "%s: cannot write events to %s: %s. The session continues without a log."
                logger.warning(text, MODULE_ID, self._file.path, error.strerror or error)

    def close(self) -> None:
        """Stop listening and close the file; a second call does nothing."""
        self._listening.close()
        self._closed = True
        self._file.close()

    def _line(self, event: str, data: Any) -> bytes:
        # Some events reach this log unchanged because a tool or the model needs their data.
        redact = REDACT_EVENT.of(self._coordinator)
        rest = raw_data(data if redact is None else redact(event, data))
        timestamp = rest.pop("timestamp", None) or utc_now().isoformat()
        session_id = rest.pop("session_id", None) or self._coordinator.session_id
        messages = rest.get("messages")
        if isinstance(messages, list) and not self._config.include_messages:
            del rest["messages"]
            rest["message_count"] = len(cast("list[Any]", messages))
        for twin, name in TWINS:
            if twin in rest and rest[twin] is rest.get(name):
                del rest[twin]
        entry = {
            "ts": timestamp,
            "level": choose_level(event),
            "event": event,
            "session_id": session_id,
            "data": rest,
        }
        return json.dumps(self._copy.of(entry)).encode("ascii") + b"\n"


LOG = Capability[EventLog]("hooks-logging.log")


async def mount(coordinator: Any, settings: LoggingConfig) -> Callable[[], None] | None:
    """Listen to every event the kernel names; settings as in `LoggingConfig`.

    Returns:
        A cleanup function that stops listening and closes the file; None if the session is not
        saved and no path is configured, so there is no file to write to.
    """
    path = _log_path(settings, coordinator)
    if path is None:
        logger.debug("%s: the session has no folder and no path is configured", MODULE_ID)
        return None
    log = EventLog(coordinator, path, settings)
    log.listen(ALL_EVENTS)
    LOG.register(coordinator, log)
    return log.close


async def on_session_ready(coordinator: Any) -> None:
    """Also listen to the events other modules announce."""
    log = LOG.of(coordinator)
    if log is not None:
        log.listen(await announced_events(coordinator))
