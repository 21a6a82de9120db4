"""Saved sessions on disk.

    sessions/<id>/
      transcript.jsonl   messages as the context received them
      events.jsonl       written by hooks-logging
      requests.jsonl     sections of the model requests, as hashes
      context.jsonl      written by context-persistent
      metadata.json      schema version, project, times, model, usage, parent
      plan.yaml          the resolved plan, without secrets
      lock               pid of the writer

Ids are global: a session is found from any directory, and its project is metadata.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import make_private_folder, write_private
from amplifier_app.sessions.folder import PLAN_FILE, SavedSession, SessionFolder, now
from amplifier_app.sessions.removal import AlreadyExists, is_remnant, remove_folder, remove_remnant
from amplifier_app.sessions.summary import (
    ID,
    SCHEMA_VERSION,
    SessionSummary,
    read_summary,
    session_ids,
    short_id,
)
from amplifier_support.clock import utc_now
from amplifier_support.files import FOLDER_MODE, sync_folder

_READ_FIRST = 50
"""Sessions whose metadata is read before the index is asked, when one of a project is wanted."""


def new_session_id() -> str:
    """A new id that sorts by time (UTC): ``20260131-235959-1a2b3c``."""
    now = utc_now()
    return f"{now.year:04}{now:%m%d-%H%M%S}-{secrets.token_hex(3)}"


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
            SessionError: The id is taken, in use or invalid, or the session cannot be written.
        """
        session_id = session_id or new_session_id()
        path = self._path(session_id)
        make_private_folder(self.root)
        try:
            path.mkdir(mode=FOLDER_MODE)
        except FileExistsError:
            _refuse_link(path)
            if not is_remnant(path):
                raise AlreadyExists(session_id) from None
        except OSError as error:
            raise SessionError(f"cannot create {path}: {error.strerror}") from error
        try:
            session = SavedSession(path, create=True)
        except BaseException:
            # Another process may have taken it: one that is in use or complete is not ours to remove.
            # An empty folder needs no lock, for which the disk may be full.
            with contextlib.suppress(OSError):
                path.rmdir()
            with contextlib.suppress(SessionError):
                remove_remnant(path)
            raise
        try:
            self._begin(session, project, plan_yaml, metadata)
        except BaseException as error:
            # Its id was never shown, and there is nothing in it to resume.
            with contextlib.suppress(SessionError):
                remove_folder(path)
            session.close()
            if isinstance(error, OSError):
                raise SessionError(f"cannot create {path}: {error.strerror}") from error
            raise
        return session

    def _begin(
        self, session: SavedSession, project: str, plan_yaml: str, metadata: dict[str, Any]
    ) -> None:
        session.path.chmod(FOLDER_MODE)
        sync_folder(self.root)
        # The metadata, written last, also brings the names of the other files to disk.
        write_private(session.path / PLAN_FILE, plan_yaml, durable=False)
        session.metadata = {
            "schema_version": SCHEMA_VERSION,
            "id": session.id,
            "created": now(),
            "project": project,
        }
        session.update(**metadata)

    def open(self, session_id: str) -> SavedSession:
        """Open an existing session, by id or unique prefix, for writing.

        Raises:
            SessionError: Unknown, ambiguous, locked by another process, or damaged.
        """
        return self.find(session_id).open()

    def get(self, session_id: object) -> SessionFolder | None:
        """The completely created session with exactly this id; None if it is missing or the id is invalid."""
        if not isinstance(session_id, str) or not ID.fullmatch(session_id):
            return None
        path = self.root / session_id
        exists = path.is_dir() and not path.is_symlink() and not is_remnant(path)
        return SessionFolder(path) if exists else None

    def find(self, session_id: str) -> SessionFolder:
        """Find a session by id, unique prefix or short id.

        Raises:
            SessionError: The id is unknown, ambiguous or invalid.
        """
        exact = self._path(session_id)
        _refuse_link(exact)
        if exact.is_dir():
            return SessionFolder(exact)
        ids = session_ids(self.root)
        matches = [name for name in ids if name.startswith(session_id)]
        matches += [name for name in ids if short_id(name) == session_id and name not in matches]
        # Ids of sub-sessions begin with the id of the session that spawned them.
        shortest = min(matches, key=len, default="")
        if matches and all(name == shortest or name.startswith(f"{shortest}-") for name in matches):
            return SessionFolder(self.root / shortest)
        if matches:
            raise SessionError(
                f"{session_id!r} matches {len(matches)} sessions, for example "
                + ", ".join(sorted(matches)[-3:]),
                hint="Add more of the id. All sessions: amplifier session list --all",
            )
        raise SessionError(
            f"there is no session {session_id!r}", hint="All sessions: amplifier session list --all"
        )

    def shortest_id(self, session_id: str) -> str:
        """Return the short id of a session if `find` finds it by that, otherwise its whole id."""
        short = short_id(session_id)
        with contextlib.suppress(SessionError):
            return short if self.find(short).id == session_id else session_id
        return session_id

    def latest(self, project: str | None = None) -> SessionFolder:
        """The last used session, optionally of one project; never a sub-session.

        Raises:
            SessionError: There is none.
        """
        by_time = sorted(session_ids(self.root), key=self._last_use, reverse=True)
        for session_id in self._of_project(by_time, project):
            folder = SessionFolder(self.root / session_id)
            if "agent" not in folder.metadata and project in (None, folder.metadata.get("project")):
                return folder
        where = f" in {project}" if project else ""
        raise SessionError(
            f"no earlier session{where}",
            hint="Start one with: amplifier run. All sessions: amplifier session list --all",
        )

    def summaries(self) -> list[SessionSummary]:
        """All sessions, last used first."""
        return sorted(
            (read_summary(self.root / session_id) for session_id in session_ids(self.root)),
            key=lambda summary: summary.updated,
            reverse=True,
        )

    def read(self, session_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The metadata and messages of a session, without opening it for writing.

        Raises:
            SessionError: The id is unknown, ambiguous or invalid, or the session is damaged.
        """
        session = self.find(session_id)
        return session.metadata, session.messages()

    def _path(self, session_id: str) -> Path:
        if not ID.fullmatch(session_id):
            raise SessionError(
                f"invalid session id {session_id!r}",
                hint="Use up to 128 letters, digits, dots, dashes and underscores.",
            )
        return self.root / session_id

    def _of_project(self, session_ids: list[str], project: str | None) -> Iterator[str]:
        """The sessions that may be of a project, in the same order."""
        yield from session_ids[:_READ_FIRST]
        others = session_ids[_READ_FIRST:]
        if others and project is not None:
            from amplifier_app.sessions.index import ask_index  # Loads SQLite.

            known, _ = ask_index(self.root, lambda index: index.ids_of_project(project))
            others = [session_id for session_id in others if session_id in known]
        yield from others

    def _last_use(self, session_id: str) -> float:
        path = f"{self.root}/{session_id}"
        for candidate in (f"{path}/transcript.jsonl", path):
            # A session may be removed while sessions are listed.
            with contextlib.suppress(OSError):
                return os.stat(candidate).st_mtime
        return 0.0


def _refuse_link(path: Path) -> None:
    """Raise SessionError if the folder of a session is a link: others could choose what is written to."""
    if path.is_symlink():
        raise SessionError(
            f"cannot use session {path.name}: its folder is a link: {path}",
            hint="Replace the link by the folder, or use another id.",
        )
