"""One saved session: found in its folder, or opened for writing."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import write_private
from amplifier_app.base.json_text import json_text
from amplifier_app.base.redact import redact
from amplifier_app.base.sanitize import one_line
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.lock import SessionLock, is_locked
from amplifier_app.sessions.removal import AlreadyExists, is_remnant
from amplifier_app.sessions.summary import (
    RESULT_FILE,
    SCHEMA_VERSION,
    Metadata,
    read_metadata,
    short_id,
    time_text,
)
from amplifier_app.sessions.tool_calls import CallNumbers
from amplifier_app.sessions.transcript import (
    Reading,
    SavedRecords,
    TranscriptWriter,
    read_transcript,
)
from amplifier_support.files import on_error, open_regular, remove_unfinished
from amplifier_support.journal import parse
from amplifier_support.text import cut_text, lazy_pattern

PLAN_FILE = "plan.yaml"

IMPORTED_PLAN = "imported-plan.yaml"
"""The plan of an imported session, which is not used unless the user names it."""


def now() -> str:
    """The time as metadata has it."""
    return time_text(time.time())


def write_metadata(path: Path, metadata: dict[str, Any], *, durable: bool = True) -> None:
    """Replace the metadata of the session in `path` atomically; its writer must be locked out.

    With `durable`, it is on disk when this returns; otherwise a power failure may restore the old metadata.

    Raises:
        SessionError: It cannot be written; the old metadata is unchanged.
    """
    # Published modules read `turn_count`, and expect that the running turn is not in it.
    data = {"turn_count": 0, **metadata}
    write_private(path / "metadata.json", json_text(data) + "\n", durable=durable)


_FILES_ADDED = lazy_pattern(r"\n\n<(?:file|folder) path=")
_LINE_MARKUP = lazy_pattern(
    r"(?m)^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+|\d+[.)][ \t]+|(?:```|~~~).*$)"
)
_LINK = lazy_pattern(r"!?\[([^\]\n]+)\]\([^)\s]+\)")
_EMPHASIS = lazy_pattern(r"(?<!\w)(\*\*|__|`+|\*|_)(?=\w)(.+?)(?<=\S)\1(?!\w)")
_TAG = lazy_pattern(r"(?:(?<!\w)<|</)[a-z][\w-]*(?:\s[^<>]*)?>")
_MAX_TITLE = 80


def make_title(prompt: str) -> str:
    """Return the first words of a prompt as a title: one line without Markdown, tags and added files."""
    text = _FILES_ADDED.split(prompt, maxsplit=1)[0]
    text = _TAG.sub(" ", _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", _LINE_MARKUP.sub("", text))))
    title = one_line(text, len(text)) or one_line(prompt, _MAX_TITLE)
    if len(title) <= _MAX_TITLE:
        return title
    words = title[:_MAX_TITLE].rpartition(" ")[0]
    return f"{words}…" if len(words) > _MAX_TITLE // 2 else cut_text(title, _MAX_TITLE)


def title_metadata(title: str) -> dict[str, Any]:
    """The metadata of a title that the user chose; modules keep a name that is there."""
    return {"title": title, "name": title}


def _version_on_disk(path: Path) -> tuple[int, int, int] | None:
    """Inode, time and size of the metadata's file, which tell whether a module wrote it; None without one."""
    with contextlib.suppress(OSError):
        status = os.stat(f"{path}/metadata.json")
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _remove_old_result(file: Path) -> None:
    """Remove the result of an earlier run in the background; one that runs holds a lock on its own."""
    if file.exists() and not is_locked(file):
        with contextlib.suppress(OSError):
            file.unlink()


def _is_answer(record: dict[str, Any]) -> bool:
    return record.get("role") == "assistant"


class SavedSession:
    """A session opened for writing; `close` it when done.

    Attributes:
        id: Its id.
        path: Its folder.
        repaired: Bytes of an incomplete last record that opening removed.
        steps: The number of answers in it; see `Step.number`.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.id = path.name
        self.path = path
        copy = f"Stop it, or start from a copy: amplifier run --fork {short_id(self.id)}"
        self._lock = SessionLock(path / "lock", self.id, copy)
        with on_error(self._lock.release):
            # Until the lock was held, another process could create it.
            if create and not is_remnant(path):
                raise AlreadyExists(self.id)
            if not create and is_remnant(path):  # What is saved now could lack a plan later.
                hint = f"Start it again: amplifier run --session {self.id}"
                raise SessionError(f"the creation of session {self.id} was interrupted", hint=hint)
            remove_unfinished(path)
            _remove_old_result(path / RESULT_FILE)
            self.metadata: dict[str, Any] = read_metadata(path).values
            self._own: set[str] = set()
            self._written = _version_on_disk(path)
            _require_known_version(self.metadata, self.id)
            reading = Reading([]) if create else _read_saved(path, self.metadata)
            self._messages = reading.messages
            self._numbers = CallNumbers()
            self._unnumbered = list(reading.file.records)
            self._writer = TranscriptWriter(path / "transcript.jsonl", reading)
            self.repaired = reading.file.torn
            self.steps = sum(map(_is_answer, self._unnumbered))

    @property
    def plan(self) -> Path:
        """The file of its plan."""
        return self.path / PLAN_FILE

    @property
    def size(self) -> int:
        """The size of its transcript in bytes; 0 if no message was ever saved in it."""
        return self._writer.size

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as it was when the session was opened (a copy of the list)."""
        return list(self._messages)

    def append(self, record: dict[str, Any]) -> None:
        """Append a record as `TranscriptWriter.append` does.

        Raises:
            SessionError: It cannot be written; earlier records are unaffected.
        """
        self._writer.append(record)
        self._unnumbered.append(record)
        self.steps += _is_answer(record)

    @property
    def calls(self) -> CallNumbers:
        """The numbers of its tool calls so far."""
        # Most runs on a long conversation ask for none.
        for record in self._unnumbered:
            self._numbers.add(record)
        self._unnumbered.clear()
        return self._numbers

    def update(self, *, durable: bool = True, **metadata: Any) -> None:
        """Change metadata and the time of the last update; see `write_metadata`.

        Raises:
            SessionError: It cannot be written; the old metadata is unchanged.
        """
        self._merge_module_metadata()
        facts = {"schema_version": SCHEMA_VERSION, "updated": now()}
        self._own |= metadata.keys() | facts.keys()
        self.metadata = {**self.metadata, **metadata, **facts}
        self._write_metadata(durable=durable)

    def _merge_module_metadata(self) -> bool:
        """Take over what a module wrote to the metadata's file; return True if one wrote to it.

        The published hooks-session-naming adds a name, and writes back the other values as they were
        before it asked a model: values that this process has changed are kept.
        """
        on_disk = _version_on_disk(self.path)
        if on_disk is None or on_disk == self._written:
            return False
        values = read_metadata(self.path).values
        own = {key: value for key, value in self.metadata.items() if key in self._own}
        self.metadata = {**self.metadata, **values, **own}
        return True

    def _write_metadata(self, *, durable: bool = True) -> None:
        write_metadata(self.path, self.metadata, durable=durable)
        self._written = _version_on_disk(self.path)

    def close(self) -> None:
        """Release the session; a second call does nothing.

        Raises:
            SessionError: A module wrote to the metadata, and it cannot be written again.
        """
        try:
            if self._lock.is_held and self._merge_module_metadata():
                self._write_metadata()
        finally:
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
    def _read_metadata(self) -> Metadata:
        return read_metadata(self.path)

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata, as of the first use; invalid values are left out."""
        return self._read_metadata.values

    @property
    def fault(self) -> str | None:
        """The fault of its metadata; None if it has none."""
        return self._read_metadata.fault

    @property
    def plan(self) -> Path:
        """The file of its plan."""
        return self.path / PLAN_FILE

    def rename(self, title: str) -> None:
        """Change its title.

        Raises:
            SessionError: It is locked by another process, its metadata is damaged, or it cannot be
                written.
        """
        with SessionLock(self.path / "lock", self.id):
            metadata = read_metadata(self.path)
            if metadata.fault is not None:
                raise SessionError(
                    f"cannot rename session {self.id}: {metadata.fault}",
                    hint=f"Repair it: amplifier session verify --repair {self.id}",
                )
            write_metadata(self.path, {**metadata.values, **title_metadata(redact(title))})

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
        return self.reading().messages

    def reading(self) -> Reading:
        """Its whole transcript, without opening it.

        Raises:
            SessionError: It is damaged.
        """
        return _read_saved(self.path, self.metadata)

    def conversation(self, size: int | None = None) -> Conversation:
        """Its prompts, steps and tool calls; see `records`.

        Raises:
            SessionError: It is damaged.
        """
        return Conversation(self.records(size))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that hooks-logging wrote for it, oldest first, without lines that cannot be read."""
        numbered = [
            path for path in self.path.glob("events.jsonl.*") if path.suffix[1:].isdecimal()
        ]
        rotated = sorted(numbered, key=lambda path: int(path.suffix[1:]), reverse=True)
        for file in [*rotated, self.path / "events.jsonl"]:
            with contextlib.suppress(OSError), open(open_regular(file, os.O_RDONLY), "rb") as lines:
                for line in lines:
                    event = parse(line)
                    if event is not None and "event" in event:
                        yield event

    def records(self, size: int | None = None) -> SavedRecords:
        """The records of its transcript, or of its first bytes, read each time they are iterated over.

        Raises:
            SessionError: It is missing; while iterating, it is damaged.
        """
        transcript = self.path / "transcript.jsonl"
        _require_content(transcript, self.metadata)
        return SavedRecords(transcript, size)


def _require_known_version(metadata: dict[str, Any], session_id: str) -> None:
    version = metadata.get("schema_version", 1)
    if version > SCHEMA_VERSION:
        raise SessionError(
            f"session {session_id} was written by a newer version of Amplifier "
            f"(schema version {version}, supported are 1 to {SCHEMA_VERSION})",
            hint="Resume it with that version.",
        )


def _read_saved(path: Path, metadata: dict[str, Any]) -> Reading:
    """The transcript of the session in `path`.

    Raises:
        SessionError: It is damaged, or its messages are lost.
    """
    transcript = path / "transcript.jsonl"
    reading = read_transcript(transcript)
    if not reading.file.size:
        _require_content(transcript, metadata)
    return reading


def _require_content(transcript: Path, metadata: dict[str, Any]) -> None:
    """Raise SessionError if the messages of a session are lost."""
    exists, prompts = transcript.exists(), metadata.get("prompts")
    if exists and (not prompts or next(iter(SavedRecords(transcript)), None) is not None):
        return
    path = transcript.parent
    state = "is empty" if exists else "is missing"
    note = f" (it had {prompts} {'prompt' if prompts == 1 else 'prompts'})" if prompts else ""
    raise SessionError(
        f"the transcript of session {path.name} {state}{note}: {transcript}",
        hint=f"Restore the file, or remove the session: amplifier session delete {short_id(path.name)}",
    )
