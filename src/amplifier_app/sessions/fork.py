"""Forks: new sessions that begin with the same bytes as another."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.sessions.conversation import Conversation, Step
from amplifier_app.sessions.creation import unfinished_session
from amplifier_app.sessions.folder import SessionFolder, now
from amplifier_app.sessions.metadata import SCHEMA_VERSION
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_support.atomic_write import create_atomically, write_private
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
    saved = source.records()
    count = end if step is None else _end_of_step(source, step)
    taken = Conversation(itertools.islice(saved, count)).size
    # The last record may lack its line feed.
    size = sum(len(line) for _, line in itertools.islice(saved.with_lines(), count))

    def prefix() -> Iterator[bytes]:
        return (line for _, line in itertools.islice(saved.with_lines(), count))

    metadata: dict[str, Any] = {
        key: value for key, value in source.metadata.items() if key not in _OF_THE_SOURCE
    }
    session_id = session_id or new_session_id()
    point = {"session": source.id, "step": taken.steps, "bytes": size}
    metadata |= {
        "schema_version": SCHEMA_VERSION,
        "id": session_id,
        "created": now(),
        "updated": now(),
        "prompts": taken.prompts,
        "forked_from": point,
        **facts,
    }
    plan = _plan(source) if plan_yaml is None else plan_yaml.encode()
    with unfinished_session(store.root, session_id) as path:
        create_atomically(path / "transcript.jsonl", prefix)
        write_private(path / "plan.yaml", plan)
        text = json.dumps(metadata, indent=2, default=str) + "\n"
        write_private(path / "metadata.json", text.encode("utf-8", "backslashreplace"))
    return SessionFolder(store.root / session_id)


def _end_of_step(source: SessionFolder, number: int) -> int:
    """The number of records up to the end of a step."""
    count = 0
    for item in source.conversation():
        if isinstance(item, Step):
            count = item.number
            if item.number == number:
                return item.end
    has = f"it has steps 1 to {count}" if count else "it has none"
    raise UsageError(
        f"session {source.id} has no step {number}; {has}",
        hint=f"Show them: amplifier session show {source.id}",
    )


def _plan(source: SessionFolder) -> bytes:
    try:
        data = read_regular(source.plan)
    except OSError as error:
        raise SessionError(
            f"cannot read the plan of session {source.id}: {error.strerror}",
            hint="Pass another one: --plan FILE",
        ) from error
    return data
