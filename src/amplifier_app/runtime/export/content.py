"""What is exported of a session: all of it, without secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from amplifier_app.base.keys import fill_environment
from amplifier_app.runtime.event_log import read_events
from amplifier_app.sessions.conversation import Conversation, read_conversation
from amplifier_app.sessions.folder import SessionFolder
from amplifier_support.redaction import Redactor, secrets_in


class Exported(NamedTuple):
    """A session without secrets.

    Attributes:
        id: Its id.
        metadata: Its metadata.
        records: The records of its transcript.
        events: The log of its events, oldest first; empty if it was not logged.
        sub_sessions: The sessions it spawned, also further down.
    """

    id: str
    metadata: dict[str, Any]
    records: list[dict[str, Any]]
    events: list[dict[str, Any]]
    sub_sessions: tuple[Exported, ...] = ()

    @property
    def conversation(self) -> Conversation:
        return read_conversation(self.records)


def redactor() -> Redactor:
    """Replaces the values of stored keys and of secret variables, and whatever looks like a secret.

    Raises:
        ConfigError: The stored keys cannot be read.
    """
    return Redactor(secrets_in(os.environ, fill_environment().secret))


def export_session(
    session: SessionFolder, spawned: Iterable[SessionFolder], redact: Callable[[Any], Any]
) -> Exported:
    """Read a session and those it spawned.

    Raises:
        SessionError: A transcript is damaged.
    """

    def read(folder: SessionFolder) -> Exported:
        records = [redact(record) for record in folder.reading().file.records]
        events = [redact(event) for event in read_events(folder.path)]
        return Exported(folder.id, redact(folder.metadata), records, events)

    return read(session)._replace(sub_sessions=tuple(read(folder) for folder in spawned))
