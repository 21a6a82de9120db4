"""The pages of the sessions that a report links to."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import write_whole
from amplifier_app.runtime.export.page import as_page
from amplifier_app.runtime.export.parts import export_session, redactor
from amplifier_app.sessions.store import SessionStore
from amplifier_batch.record.journal import Record


class SessionPages:
    """Writes the page of a row's session into a folder next to the report.

    Args:
        sessions: The sessions of the batch.
        report: The file of the report.

    Attributes:
        folder: The folder, named after the report.
        written: How many pages were written.
    """

    def __init__(self, sessions: Path, report: Path) -> None:
        self.folder = report.with_name(f"{report.stem}-sessions")
        self.written = 0
        self._store = SessionStore(sessions)
        self._redact = redactor().value

    def link(self, result: Record) -> str | None:
        """Write the page of a row and return its address relative to the report; None if the row has no session.

        Raises:
            ConfigError: The page cannot be written.
        """
        session = self._store.get(result["session_id"])
        if session is None:
            return None
        below = (
            self._store.get(sub_session["session_id"]) for sub_session in result["sub_sessions"]
        )
        try:
            page = as_page(export_session(session, filter(None, below), self._redact))
            text = "".join(page)
        except SessionError:  # The session is damaged; the report is still useful.
            return None
        write_whole(self.folder / f"{session.id}.html", text)
        self.written += 1
        return quote(f"{self.folder.name}/{session.id}.html")
