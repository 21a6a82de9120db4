"""Saved sessions on disk.

    sessions/<id>/
      transcript.jsonl   messages as the context received them
      events.jsonl       written by hooks-logging
      context.jsonl      written by context-persistent
      metadata.json      schema version, project, times, model, usage, parent
      plan.yaml          the resolved plan, without secrets
      lock               pid of the writer

Ids are global: a session is found from any directory, and its project is metadata.
"""

import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError
from amplifier_app.base.private_files import (
    FOLDER_MODE,
    make_private_folder,
    remove_unfinished,
    sync_folder,
    write_private,
)
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.tool_calls import CallNumbers
from amplifier_app.sessions.transcript import Reading, TranscriptWriter, read_transcript

SCHEMA_VERSION = 1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_session_id() -> str:
    """A new id that sorts by time (UTC): ``20260131-235959-1a2b3c``."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class SessionSummary(NamedTuple):
    """A session as listed; `turns` is None if unknown.

    A sub-session has a `parent`, the session that spawned it, and an `agent`, its name in the plan.
    """

    id: str
    updated: str
    project: str | None
    model: str | None
    turns: int | None
    title: str | None
    parent: str | None = None
    agent: str | None = None


class SavedSession:
    """A session opened for writing; `close` it when done.

    Attributes:
        id: Its id.
        path: Its folder.
        repaired: Bytes of an incomplete last record that opening removed.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.id = path.name
        self.path = path
        self._lock = SessionLock(path / "lock", self.id)
        try:
            remove_unfinished(path)
            self.metadata = _read_metadata(path)
            reading = Reading([]) if create else _read_saved(path, self.metadata)
            self._messages = reading.messages
            self._records = reading.file.records
            self._numbers: CallNumbers | None = None
            self._writer = TranscriptWriter(self._transcript, reading)
            self.repaired = reading.file.torn
        except BaseException:
            self._lock.release()
            raise

    @property
    def _transcript(self) -> Path:
        return self.path / "transcript.jsonl"

    @property
    def is_empty(self) -> bool:
        """Whether no message was ever saved in it."""
        return not self._writer.size

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as it was when the session was opened (a copy of the list)."""
        return list(self._messages)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record; it is on disk when this returns.

        Raises:
            SessionError: It cannot be written; earlier records are unaffected.
        """
        self._writer.append(record)
        self.calls.add(record)

    @property
    def calls(self) -> CallNumbers:
        """The numbers of its tool calls so far."""
        if self._numbers is None:
            self._numbers = CallNumbers(self._records)
        return self._numbers

    def update(self, **metadata: Any) -> None:
        """Change metadata and the time of the last update.

        Raises:
            SessionError: It cannot be written; the old metadata is unchanged.
        """
        self.metadata = {**self.metadata, **metadata, "updated": _now()}
        text = json.dumps(self.metadata, indent=2, default=str) + "\n"
        write_private(self.path / "metadata.json", text)

    def close(self) -> None:
        """Release the session; a second call does nothing."""
        self._writer.close()
        self._lock.release()


class SessionFolder:
    """A saved session that was found and is not open.

    Attributes:
        id: Its id.
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self.id = path.name
        self.path = path

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """Its metadata, as of the first use."""
        return _read_metadata(self.path)

    @property
    def plan(self) -> Path:
        """The file of its plan."""
        return self.path / "plan.yaml"

    def open(self) -> SavedSession:
        """Open it for writing.

        Raises:
            SessionError: It is locked by another process, or damaged.
        """
        return SavedSession(self.path, create=False)

    def messages(self) -> list[dict[str, Any]]:
        """Its messages, without opening it.

        Raises:
            SessionError: It is damaged.
        """
        return _read_saved(self.path, self.metadata).messages


class SessionStore:
    """The folder of saved sessions.

    Args:
        root: The folder; by default the user's.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or paths.sessions_dir()

    def create(
        self, session_id: str | None = None, *, project: str, plan_yaml: str = "", **metadata: Any
    ) -> SavedSession:
        """Create a session and open it for writing.

        Args:
            session_id: Its id; by default a new one.
            project: Absolute path of the directory it was started in.
            plan_yaml: The resolved plan, without secrets.
            metadata: Further metadata, e.g. profile, model or parent.

        Raises:
            SessionError: The id is taken or invalid, or the session cannot be written.
        """
        session_id = session_id or new_session_id()
        path = self._path(session_id)
        make_private_folder(self.root)
        try:
            path.mkdir(mode=FOLDER_MODE)
            path.chmod(FOLDER_MODE)
            sync_folder(self.root)
        except FileExistsError:
            raise SessionError(
                f"session {session_id} already exists", hint=f"Resume it: --resume {session_id}"
            ) from None
        except OSError as error:
            raise SessionError(f"cannot create {path}: {error.strerror}") from error
        try:
            return self._begin(path, project, plan_yaml, metadata)
        except BaseException:
            # Its id was never shown, and there is nothing in it to resume.
            shutil.rmtree(path, ignore_errors=True)
            raise

    def _begin(
        self, path: Path, project: str, plan_yaml: str, metadata: dict[str, Any]
    ) -> SavedSession:
        session = SavedSession(path, create=True)
        try:
            write_private(path / "plan.yaml", plan_yaml)
            session.metadata = {
                "schema_version": SCHEMA_VERSION,
                "id": session.id,
                "created": _now(),
                "project": project,
            }
            session.update(**metadata)
        except BaseException:
            session.close()
            raise
        return session

    def open(self, session_id: str) -> SavedSession:
        """Open an existing session, by id or unique prefix, for writing.

        Raises:
            SessionError: Unknown, ambiguous, locked by another process, or damaged.
        """
        return self.find(session_id).open()

    def exists(self, session_id: str) -> bool:
        """Whether there is a session with exactly this id."""
        return self._path(session_id).is_dir()

    def find(self, session_id: str) -> SessionFolder:
        """Find a session by id or unique prefix.

        Raises:
            SessionError: The id is unknown, ambiguous or invalid.
        """
        exact = self._path(session_id)
        if exact.is_dir() and not exact.is_symlink():
            return SessionFolder(exact)
        matches = [name for name in self._ids() if name.startswith(session_id)]
        # Ids of sub-sessions begin with the id of the session that spawned them.
        shortest = min(matches, key=len, default="")
        if matches and all(name == shortest or name.startswith(f"{shortest}-") for name in matches):
            return SessionFolder(self.root / shortest)
        if matches:
            raise SessionError(
                f"{session_id!r} matches {len(matches)} sessions, for example "
                + ", ".join(sorted(matches)[:5]),
                hint="Add more of the id. All sessions: amplifier session list",
            )
        raise SessionError(
            f"there is no session {session_id!r}", hint="All sessions: amplifier session list"
        )

    def latest(self, project: str | None = None) -> SessionFolder:
        """The last used session, optionally of one project; never a sub-session.

        Raises:
            SessionError: There is none.
        """
        by_time = sorted(self._ids(), key=self._last_use, reverse=True)
        for session_id in by_time:
            found = SessionFolder(self.root / session_id)
            data = found.metadata
            if "agent" not in data and project in (None, data.get("project")):
                return found
        where = f" in {project}" if project else ""
        raise SessionError(
            f"no earlier session{where}",
            hint="Start one with: amplifier run. All sessions: amplifier session list",
        )

    def summaries(self) -> list[SessionSummary]:
        """All sessions, last used first."""
        return sorted(
            (self.summary(self.root / session_id) for session_id in self._ids()),
            key=lambda summary: summary.updated,
            reverse=True,
        )

    def spawned_by(self, session_id: str) -> list[SessionSummary]:
        """The sub-sessions that a session spawned, oldest first."""
        found = [one for one in self.summaries() if one.agent and one.parent == session_id]
        return found[::-1]

    def summary(self, path: Path) -> SessionSummary:
        """The summary of the session in `path`."""
        data = _read_metadata(path)
        return SessionSummary(
            path.name,
            str(data.get("updated") or data.get("created") or ""),
            data.get("project"),
            data.get("model"),
            data.get("turns"),
            data.get("title"),
            data.get("parent"),
            data.get("agent"),
        )

    def read(self, session_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The metadata and messages of a session, without opening it for writing.

        Raises:
            SessionError: The id is unknown, ambiguous or invalid, or the session is damaged.
        """
        found = self.find(session_id)
        return found.metadata, found.messages()

    def _path(self, session_id: str) -> Path:
        if not _ID.fullmatch(session_id):
            raise SessionError(
                f"invalid session id {session_id!r}",
                hint="Use up to 128 letters, digits, dots, dashes and underscores.",
            )
        return self.root / session_id

    def _ids(self) -> list[str]:
        try:
            with os.scandir(self.root) as entries:
                return [
                    entry.name
                    for entry in entries
                    if _ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SessionError(f"cannot read {self.root}: {error.strerror}") from error

    def _last_use(self, session_id: str) -> float:
        path = self.root / session_id
        for candidate in (path / "transcript.jsonl", path):
            # A session may be removed while sessions are listed.
            with contextlib.suppress(OSError):
                return candidate.stat().st_mtime
        return 0.0


def _read_saved(path: Path, metadata: dict[str, Any]) -> Reading:
    """The transcript of the session in `path`.

    Raises:
        SessionError: It is damaged, or its messages are lost.
    """
    transcript = path / "transcript.jsonl"
    reading = read_transcript(transcript)
    exists, turns = transcript.exists(), metadata.get("turns")
    if exists and (reading.file.size or not turns):
        return reading
    state = "is empty" if exists else "is missing"
    had = f" ({turns} {'turn was' if turns == 1 else 'turns were'} saved)" if turns else ""
    raise SessionError(
        f"the transcript of session {path.name} {state}{had}: {transcript}",
        hint=f"Restore the file, or remove {path} and start a new session.",
    )


def _read_metadata(path: Path) -> dict[str, Any]:
    """The session's metadata; if the file is unreadable, what can be derived from the folder.

    A session whose metadata is lost can still be resumed.
    """
    try:
        data = json.loads((path / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = None
    return data if isinstance(data, dict) else {"schema_version": SCHEMA_VERSION, "id": path.name}
