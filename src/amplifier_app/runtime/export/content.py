"""What is exported of a session: all of it, without secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from amplifier_app.base.keys import fill_environment
from amplifier_app.runtime.event_log import read_events
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.folder import SessionFolder
from amplifier_support.redaction import Redactor, secrets_in


class Exported(NamedTuple):
    """A session without secrets.

    Attributes:
        id: Its id.
        metadata: Its metadata.
        records: The records of its transcript, read and redacted each time they are iterated over.
        events: The log of its events, oldest first, likewise; empty if it was not logged.
        sub_sessions: The sessions it spawned, also further down.
        unredacted: Its conversation with secrets: only to be counted, which is faster.
    """

    id: str
    metadata: dict[str, Any]
    records: Iterable[dict[str, Any]]
    events: Iterable[dict[str, Any]]
    sub_sessions: tuple[Exported, ...] = ()
    unredacted: Conversation | None = None

    @property
    def conversation(self) -> Conversation:
        conversation = Conversation(self.records)
        if self.unredacted is not None:
            conversation.size = self.unredacted.size
        return conversation


def redactor() -> Redactor:
    """Replaces the values of stored keys and of secret variables, and whatever looks like a secret.

    Raises:
        ConfigError: The stored keys cannot be read.
    """
    return Redactor(secrets_in(os.environ, fill_environment().secret))


class _Redacted(Iterable[dict[str, Any]]):
    """Records without secrets, read and redacted each time they are iterated over."""

    def __init__(
        self, read: Callable[[], Iterable[dict[str, Any]]], redact: Callable[[Any], Any]
    ) -> None:
        self._read = read
        self._redact = redact

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._redact, self._read())


def export_session(
    session: SessionFolder, spawned: Iterable[SessionFolder], redact: Callable[[Any], Any]
) -> Exported:
    """A session and those it spawned.

    Raises:
        SessionError: A transcript is damaged.
    """

    def read(folder: SessionFolder) -> Exported:
        saved = folder.records()
        unredacted = Conversation(saved)
        # Counting also finds damage before anything is written.
        _ = unredacted.size
        records = _Redacted(lambda: saved, redact)
        events = _Redacted(lambda: read_events(folder.path), redact)
        return Exported(folder.id, redact(folder.metadata), records, events, unredacted=unredacted)

    return read(session)._replace(sub_sessions=tuple(read(folder) for folder in spawned))
