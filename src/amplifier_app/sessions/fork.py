"""Forks: new sessions that begin with the same bytes as another."""

from __future__ import annotations

import json
from typing import Any

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.sessions.conversation import Conversation, Step, read_conversation
from amplifier_app.sessions.creation import unfinished_session
from amplifier_app.sessions.folder import SessionFolder, now
from amplifier_app.sessions.metadata import SCHEMA_VERSION
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_support.atomic_write import write_private
from amplifier_support.private_files import read_regular

_OF_THE_SOURCE = ("usage", "spent", "parent", "agent", "depth", "spawned_with")
"""Metadata that a fork does not take over: it has used nothing yet and works for no other session."""


def fork_session(
    store: SessionStore,
    source: SessionFolder,
    *,
    step: int | None = None,
    end: int | None = None,
    session_id: str | None = None,
    plan_yaml: str | None = None,
    **facts: Any,
) -> SessionFolder:
    """Create a session whose transcript is that of `source` up to the end of a step.

    The source is not changed and may be in use. The fork starts with no usage, and without the logs
    and the copies of files of the source.

    Args:
        store: Where to create it.
        source: The session to fork.
        step: The step; by default the last one.
        end: The number of records to take over, instead of a step.
        session_id: Its id; generated if None.
        plan_yaml: Its plan; by default the plan of the source.
        facts: Metadata to change.

    Raises:
        UsageError: The session has no such step.
        SessionError: The source is damaged or has no plan, or the fork cannot be written.
    """
    records = source.reading().file.records
    # Read again as bytes; it may have grown, and lines are only added.
    transcript = _transcript(source)
    conversation = read_conversation(records)
    count = len(records) if end is None else end
    if step is not None:
        count = _step(conversation, step, source.id).end
    prefix = _first_lines(transcript, count)
    taken = read_conversation(records[:count])
    metadata: dict[str, Any] = {
        key: value for key, value in source.metadata.items() if key not in _OF_THE_SOURCE
    }
    session_id = session_id or new_session_id()
    point = {"session": source.id, "step": len(taken.steps), "bytes": len(prefix)}
    metadata |= {
        "schema_version": SCHEMA_VERSION,
        "id": session_id,
        "created": now(),
        "updated": now(),
        "prompts": len(taken.prompts),
        "forked_from": point,
        **facts,
    }
    plan = _plan(source) if plan_yaml is None else plan_yaml.encode()
    with unfinished_session(store.root, session_id) as path:
        write_private(path / "transcript.jsonl", prefix)
        write_private(path / "plan.yaml", plan)
        text = json.dumps(metadata, indent=2, default=str) + "\n"
        write_private(path / "metadata.json", text.encode("utf-8", "backslashreplace"))
    return SessionFolder(store.root / session_id)


def _step(conversation: Conversation, number: int, session_id: str) -> Step:
    steps = conversation.steps
    if not 1 <= number <= len(steps):
        has = f"it has steps 1 to {len(steps)}" if steps else "it has none"
        raise UsageError(
            f"session {session_id} has no step {number}; {has}",
            hint=f"Show them: amplifier session show {session_id}",
        )
    return steps[number - 1]


def _transcript(source: SessionFolder) -> bytes:
    path = source.path / "transcript.jsonl"
    try:
        return read_regular(path)
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from error


def _first_lines(data: bytes, count: int) -> bytes:
    """The first lines of a transcript, as they are."""
    end = 0
    for _ in range(count):
        found = data.find(b"\n", end)
        if found < 0:
            return data
        end = found + 1
    return data[:end]


def _plan(source: SessionFolder) -> bytes:
    try:
        data = read_regular(source.plan)
    except OSError as error:
        raise SessionError(
            f"cannot read the plan of session {source.id}: {error.strerror}",
            hint="Pass another one: --plan FILE",
        ) from error
    return data
