"""A database of the saved sessions, for listing and searching them.

The folders of the sessions are the truth, and the database can be removed at any time. Each use brings
it up to date: metadata that changed is read again, and for a search the transcripts that changed, too.
A damaged database is built again. If it is unusable (a full disk, a read-only folder, another process
that holds it), the sessions are read into memory instead.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import open_private
from amplifier_app.base.redact import redactor
from amplifier_app.sessions.summary import (
    SessionSummary,
    read_summary,
    session_ids,
    without_surrogates,
)
from amplifier_app.sessions.tool_calls import agent_answer, as_text, blocks_in, calls_in, results_in
from amplifier_support.files import on_error, open_regular, try_lock
from amplifier_support.journal import parse
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import cut_text

FILE = ".index.sqlite3"
"""In the folder of the sessions, where no session can have this name."""

_VERSION = 3
_WAIT_SECONDS = 2.0
_MAX_AT_ONCE, _MAX_TEXT_AT_ONCE = 200, 10_000_000
_COLUMNS = SessionSummary._fields
_SCHEMA = (
    f"CREATE TABLE sessions (id TEXT PRIMARY KEY, {', '.join(_COLUMNS[1:])}, signature)",
    "CREATE INDEX by_update ON sessions (updated)",
    "CREATE INDEX by_project ON sessions (project)",
    "CREATE INDEX by_parent ON sessions (parent)",
    "CREATE TABLE transcripts (row INTEGER PRIMARY KEY, id TEXT UNIQUE, signature)",
    f"PRAGMA user_version = {_VERSION}",
)
_TEXTS = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS texts"
    " USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2')"
)
_TOP = (
    "NOT (session.agent IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM sessions AS above WHERE above.id = session.parent"
    " AND above.id <> session.id))"
)
_BELOW = """below (id) AS (
    SELECT id FROM sessions WHERE parent = {} AND agent IS NOT NULL AND id <> parent
    UNION SELECT sessions.id FROM sessions JOIN below ON sessions.parent = below.id
    WHERE sessions.agent IS NOT NULL AND sessions.id <> sessions.parent
)"""
_DESCENDANTS = f"WITH RECURSIVE {_BELOW.format('session.id')} SELECT count(*) FROM below"
_UNUSABLE = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM),
}
_BEGIN, _END = "\x01", "\x02"

_Answer = TypeVar("_Answer")


class Listed(NamedTuple):
    """A session in a list, and how many sub-sessions it has, also further down."""

    session: SessionSummary
    spawned: int


class Page(NamedTuple):
    """The beginning of a list of sessions.

    Attributes:
        listed: The sessions.
        total: How many sessions the whole list has.
        elsewhere: How many sessions there are of other projects.
    """

    listed: list[Listed]
    total: int
    elsewhere: int


class Match(NamedTuple):
    """A session whose text matches a search.

    Attributes:
        session: The session.
        snippet: The part that matches, in pieces, each with whether it is one of the words.
    """

    session: SessionSummary
    snippet: list[tuple[str, bool]]


class Found(NamedTuple):
    """The answer of an index, as `matches` of `total`."""

    matches: list[Match]
    total: int


class Index:
    """The sessions in one folder; use it through `ask_index`."""

    def __init__(self, root: Path, database: sqlite3.Connection) -> None:
        self._root = root
        self._database = database

    def page(self, project: str | None, limit: int) -> Page:
        """The last used sessions, without sub-sessions; see `Page`.

        Args:
            project: Only sessions started in this directory.
            limit: The most to list; 0 for all.
        """
        top = _TOP if project is None else f"{_TOP} AND project = :project"
        project = None if project is None else without_surrogates(project)
        values = {"project": project, "limit": limit or -1}
        columns = ", ".join(f"session.{name}" for name in _COLUMNS)
        rows = self._database.execute(
            f"SELECT ({_DESCENDANTS}), {columns} FROM sessions AS session WHERE {top}"
            " ORDER BY updated DESC, id DESC LIMIT :limit",
            values,
        ).fetchall()
        counts = [
            self._database.execute(
                f"SELECT count(*) FROM sessions AS session WHERE {condition}", values
            ).fetchone()[0]
            for condition in (top, _TOP)
        ]
        listed = [Listed(SessionSummary(*rest), spawned) for spawned, *rest in rows]
        return Page(listed, counts[0], counts[1] - counts[0])

    def list_sub_sessions(self, session_id: str) -> list[SessionSummary]:
        """The sub-sessions of a session, also those further down, oldest first."""
        columns = ", ".join(f"session.{name}" for name in _COLUMNS)
        rows = self._database.execute(
            f"WITH RECURSIVE {_BELOW.format('?')} SELECT {columns} FROM sessions AS session"
            " JOIN below USING (id) ORDER BY updated, id",
            (session_id,),
        )
        return [SessionSummary(*row) for row in rows]

    def ids_of_project(self, project: str) -> set[str]:
        """The ids of the sessions started in this directory."""
        values = (without_surrogates(project),)
        rows = self._database.execute("SELECT id FROM sessions WHERE project = ?", values)
        return {session_id for (session_id,) in rows}

    def search(self, words: str, limit: int = 0) -> Found:
        """The sessions that contain all of these words, best first; 0 does not limit them.

        A word also matches the beginning of a longer one.

        Raises:
            SessionError: This SQLite cannot search text.
        """
        self._update_texts()
        quoted = without_surrogates(words).replace('"', '""').split()
        query = " ".join(f'"{word}"*' for word in quoted)
        (total,) = self._database.execute(
            "SELECT count(*) FROM texts WHERE texts MATCH ?", (query,)
        ).fetchone()
        columns = ", ".join(f"sessions.{name}" for name in _COLUMNS)
        rows = self._database.execute(
            f"SELECT snippet(texts, 0, '{_BEGIN}', '{_END}', '…', 24), {columns} FROM texts"
            " JOIN transcripts ON transcripts.row = texts.rowid"
            " JOIN sessions ON sessions.id = transcripts.id"
            " WHERE texts MATCH ? ORDER BY rank LIMIT ?",
            (query, limit or -1),
        )
        matches = [Match(SessionSummary(*rest), _pieces(snippet)) for snippet, *rest in rows]
        return Found(matches, total)

    def forget_removed(self) -> None:
        """Remove every trace of the sessions that are gone."""
        if self._searches:
            self._database.execute("INSERT INTO texts (texts) VALUES ('optimize')")

    # Bringing it up to date

    def update(self) -> None:
        """Read metadata that changed since the last update."""
        changed, gone = self._changes("sessions", "metadata.json")
        rows = [
            (*read_summary(self._root / session_id), signature) for session_id, signature in changed
        ]
        if not rows and not gone:
            return
        marks = ", ".join("?" * (len(_COLUMNS) + 1))
        with _transaction(self._database):
            self._database.executemany(f"INSERT OR REPLACE INTO sessions VALUES ({marks})", rows)
            for session_id in gone:
                self._database.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
                self._forget_text(session_id)

    def _update_texts(self) -> None:
        try:
            self._database.execute(_TEXTS)
        except sqlite3.OperationalError as error:
            if "fts5" not in str(error):
                raise
            raise SessionError(
                "cannot search: the SQLite of this Python has no full-text search (FTS5)",
                hint="Use another Python, or grep in the folder of the sessions.",
            ) from error
        changed, gone = self._changes("transcripts", "transcript.jsonl", "metadata.json")
        read: list[tuple[str, str, str]] = []
        size = 0
        for session_id, signature in changed:
            text = search_text(self._root / session_id)
            read.append((session_id, signature, text))
            size += len(text)
            if len(read) >= _MAX_AT_ONCE or size >= _MAX_TEXT_AT_ONCE:
                self._store_texts(read)
                read, size = [], 0
        self._store_texts(read)
        with _transaction(self._database):
            for session_id in gone:
                self._forget_text(session_id)

    def _store_texts(self, read: list[tuple[str, str, str]]) -> None:
        """Store texts in one transaction, which is short: the files have been read before."""
        with _transaction(self._database):
            for session_id, signature, text in read:
                self._forget_text(session_id)
                row = self._database.execute(
                    "INSERT INTO transcripts (id, signature) VALUES (?, ?)", (session_id, signature)
                ).lastrowid
                self._database.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (row, text))

    def _forget_text(self, session_id: str) -> None:
        cursor = self._database.execute("SELECT row FROM transcripts WHERE id = ?", (session_id,))
        for row in cursor.fetchall():
            self._database.execute("DELETE FROM texts WHERE rowid = ?", row)
            self._database.execute("DELETE FROM transcripts WHERE row = ?", row)

    @property
    def _searches(self) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE name = 'texts'"
        return self._database.execute(query).fetchone() is not None

    def _changes(self, table: str, *files: str) -> tuple[list[tuple[str, str]], list[str]]:
        """The sessions whose files differ from the table, with their signature, and those gone."""
        known: dict[str, str] = dict(self._database.execute(f"SELECT id, signature FROM {table}"))
        changed: list[tuple[str, str]] = []
        for session_id in session_ids(self._root):
            folder = f"{self._root}/{session_id}"
            signature = ",".join([_signature(f"{folder}/{file}") for file in files])
            if known.pop(session_id, None) != signature:
                changed.append((session_id, signature))
        return changed, list(known)


def ask_index(root: Path, question: Callable[[Index], _Answer]) -> tuple[_Answer, str]:
    """Ask the up-to-date index of the sessions in `root`.

    Returns:
        The answer, and what the user should know about the index; empty if nothing.

    Raises:
        SessionError: The folder of the sessions cannot be read.
    """
    if not root.is_dir():
        return _ask(root, _in_memory(), question), ""
    try:
        return _ask(root, _on_disk(root), question), ""
    except (sqlite3.DatabaseError, SessionError) as error:
        reason: Exception = error
        if isinstance(error, sqlite3.DatabaseError) and not _is_unusable(error):
            with contextlib.suppress(sqlite3.DatabaseError, SessionError):
                _remove(root)
                answer = _ask(root, _on_disk(root), question)
                return answer, f"the session index has been rebuilt ({error})"
    answer = _ask(root, _in_memory(), question)
    return answer, f"the session index cannot be used ({reason}); reading every session instead"


def _ask(root: Path, database: sqlite3.Connection, question: Callable[[Index], _Answer]) -> _Answer:
    with contextlib.closing(database):
        if not database.execute("PRAGMA user_version").fetchone()[0]:
            _create(database)
        index = Index(root, database)
        index.update()
        return question(index)


def _on_disk(root: Path) -> sqlite3.Connection:
    """Open the database in `root`, for its owner only.

    Raises:
        SessionError: It cannot be opened.
        sqlite3.DatabaseError: It is damaged.
    """
    file = root / FILE
    os.close(open_private(file, os.O_RDWR | os.O_CREAT))
    for suffix in ("-wal", "-shm"):
        if os.path.islink(f"{file}{suffix}"):
            raise SessionError(f"cannot open {file}{suffix}: it is a link")
    database = sqlite3.connect(file, timeout=_WAIT_SECONDS, isolation_level=None)
    with on_error(database.close):
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA secure_delete = ON")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"another version of amplifier made it: {version}")
    return database


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def _create(database: sqlite3.Connection) -> None:
    with _transaction(database):
        # Another process may have created it in the meantime.
        if not database.execute("PRAGMA user_version").fetchone()[0]:
            for statement in _SCHEMA:
                database.execute(statement)


def _remove(root: Path) -> None:
    """Remove a damaged database, one process at a time.

    Raises:
        sqlite3.DatabaseError: Another process does not finish doing so.
        SessionError: It cannot be removed.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    descriptor = open_private(root / f"{FILE}.lock", os.O_RDWR | os.O_CREAT)
    try:
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise sqlite3.DatabaseError("another process is rebuilding it")
            time.sleep(0.02)
        if _is_damaged(root):
            # The log first: a new database must not find the log of the old one.
            for suffix in ("-wal", "-shm", ""):
                (root / f"{FILE}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise SessionError(f"cannot remove {root / FILE}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _is_damaged(root: Path) -> bool:
    """Return True if the database is still damaged; another process may have rebuilt it."""
    try:
        with contextlib.closing(_on_disk(root)) as database:
            check = database.execute("PRAGMA quick_check(1)").fetchone()
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            return check[0] != "ok" or not {"sessions", "transcripts"} <= names
    except sqlite3.DatabaseError:
        return True


def _is_unusable(error: sqlite3.DatabaseError) -> bool:
    """Return True if the database may be whole but cannot be used now."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _UNUSABLE


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Generator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _signature(path: str) -> str:
    """Return a text that changes with the content of a file; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def _pieces(snippet: str) -> list[tuple[str, bool]]:
    pieces: list[tuple[str, bool]] = []
    for number, part in enumerate(snippet.replace(_END, _BEGIN).split(_BEGIN)):
        if part:
            pieces.append((part, number % 2 == 1))
    return pieces


# The text of a session

_MAX_RESULT = 2_000
_MAX_BYTES = 50_000_000


def search_text(path: Path) -> str:
    """The title, prompts, answers, tool inputs and the beginnings of tool results, without secrets.

    Damaged records are left out.
    """
    redact = redactor().text

    def clean(text: str) -> str:
        return redact(text.replace("\x01", "").replace("\x02", ""))

    parts, left = list[str](), _MAX_BYTES
    with (
        contextlib.suppress(OSError),
        open(open_regular(path / "transcript.jsonl", os.O_RDONLY), "rb") as file,
    ):
        for line in file:
            left -= len(line)
            record = parse(line) if left >= 0 else None
            if record is not None and record.get("role") not in ("system", "developer"):
                # One by one: of all of them at once, several copies would be in memory.
                parts += map(clean, _texts(record))
    title = clean(read_summary(path).title or "")
    # Most titles are the beginning of the first prompt.
    if parts and " ".join(parts[0].split()).startswith(title.removesuffix("…")):
        title = ""
    return without_surrogates("\n".join(filter(None, (title, *parts))))


def _texts(message: dict[str, Any]) -> Iterator[str]:
    results = results_in(message)
    content = message.get("content")
    if isinstance(content, str) and not results:
        yield content
    for block in blocks_in(message, "text"):
        yield str(block.get("text", ""))
    for call in calls_in(message):
        yield f"{call.name} {as_text(call.input)}"
    for _, result in results:
        text = agent_answer(result) or as_text(result)
        # The mark says that the last word may be a part of a token.
        yield cut_text(text, _MAX_RESULT)
