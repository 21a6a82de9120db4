"""Forks: new sessions that begin with the same bytes as another.

The transcript of a fork names the sub-sessions of the other session. Resumed in the fork, such a
sub-session is forked too, as it was at the end of the step where the sessions diverge: the other session
keeps its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.base.file_writing import make_private_folder
from amplifier_app.sessions.conversation import Call, Conversation, Step
from amplifier_app.sessions.folder import SessionFolder, now
from amplifier_app.sessions.lock import SessionLock
from amplifier_app.sessions.removal import UNFINISHED, AlreadyExists
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_app.sessions.summary import ID, SCHEMA_VERSION, short_id
from amplifier_app.sessions.transcript import transcript_size
from amplifier_support.fields import to_mapping
from amplifier_support.files import (
    FOLDER_MODE,
    create_atomically,
    on_error,
    read_regular,
    sync_folder,
    system_errors_as,
    write_private,
)


@contextlib.contextmanager
def unfinished_session(root: Path, session_id: str) -> Generator[Path]:
    """A new folder to fill, which becomes the folder of the session when the block ends.

    If the block raises, the folder is removed; if the process dies, it is left under a name that no
    session has (see `remove_leftovers`).

    Raises:
        SessionError: The id is taken, or the folder cannot be created.
    """
    target = root / session_id
    make_private_folder(root)
    _require_free(target)
    path = root / f"{UNFINISHED}{session_id[:100]}-{secrets.token_hex(4)}"
    with system_errors_as(SessionError, f"cannot create {path}"):
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)
    with (
        system_errors_as(SessionError, f"cannot create session {session_id}"),
        on_error(shutil.rmtree, path, ignore_errors=True),
        SessionLock(path / "lock", session_id),
    ):
        yield path
        for folder, _, _ in os.walk(path):
            sync_folder(folder)
        _require_free(target)
        os.rename(path, target)
        sync_folder(root)


def _require_free(target: Path) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(target.name)


_OF_THE_SOURCE = ["usage", "spent", "parent", "agent", "depth", "spawned_with", "title_requests"]
"""Metadata that a fork does not take over: it has used nothing yet and works for no other session."""

_FORK = re.compile(r"\AFork at step \d+: ")


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
        "turn_count": taken.prompts,
        "forked_from": point,
        **({} if "parent" in facts else _titles(metadata, taken.steps)),
        **facts,
    }
    plan = _plan(source) if plan_yaml is None else plan_yaml.encode()
    with unfinished_session(store.root, session_id) as path:
        create_atomically(path / "transcript.jsonl", prefix)
        write_private(path / "plan.yaml", plan)
        text = json.dumps(metadata, indent=2, default=str) + "\n"
        write_private(path / "metadata.json", text.encode("utf-8", "backslashreplace"))
    return SessionFolder(store.root / session_id)


def _titles(metadata: Mapping[str, Any], step: int) -> dict[str, str]:
    """The title and the name of a fork, different from those of its source."""
    return {
        key: f"Fork at step {step}: {_FORK.sub('', title)}"
        for key in ("title", "name")
        if isinstance(title := metadata.get(key), str)
    }


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
        hint=f"Show them: amplifier session show {short_id(source.id)}",
    )


def _plan(source: SessionFolder) -> bytes:
    with system_errors_as(
        SessionError,
        f"cannot read the plan of session {source.id}",
        hint="Pass another one: --plan FILE",
    ):
        data = read_regular(source.plan)
    return data


_OF_A_SUB_SESSION = ("agent", "depth", "spawned_with")


def sub_session_of_fork(
    store: SessionStore, fork: SessionFolder, session_id: str
) -> SessionFolder | None:
    """The fork's own copy of a sub-session that its transcript names; it is made if it is missing.

    Args:
        store: The saved sessions.
        fork: The session that resumes it.
        session_id: The sub-session, of a session that the fork was forked from.

    Returns:
        The copy; None if the fork took over no such sub-session.

    Raises:
        SessionError: A transcript is damaged, or the copy cannot be written.
    """
    sources = {source.id: source for source in _sources(store, fork)}
    named = store.get(session_id)
    if named is None or named.metadata.get("parent") not in sources:
        return None
    origin = [named, *_sources(store, named)][-1].id
    for parent in sources.values():
        spawned = store.get(_copy_id(origin, parent.id)) or store.get(origin)
        if spawned is not None and spawned.metadata.get("parent") == parent.id:
            return _copy(store, fork, parent, spawned, _copy_id(origin, fork.id))
    return None


def _copy(
    store: SessionStore,
    fork: SessionFolder,
    parent: SessionFolder,
    spawned: SessionFolder,
    copy_id: str,
) -> SessionFolder | None:
    if (copy := store.get(copy_id)) is not None:
        return copy
    names = {spawned.id, *(source.id for source in _sources(store, spawned))}
    point = fork.metadata["forked_from"].get("step")
    if not isinstance(point, int):
        return None
    before = [call for call in _runs(fork, names) if call.step <= point]
    if not before:
        return None
    later = len(_runs(parent, names)) - len(before)
    prompts = spawned.conversation().prompts
    end = prompts[-later].end - 1 if 0 < later < len(prompts) else None
    metadata = spawned.metadata
    facts = {key: metadata[key] for key in _OF_A_SUB_SESSION if key in metadata}
    try:
        return fork_session(store, spawned, end=end, session_id=copy_id, parent=fork.id, **facts)
    except SessionError:
        if (copy := store.get(copy_id)) is not None:  # by another task at the same time
            return copy
        raise


def _sources(store: SessionStore, session: SessionFolder) -> Iterator[SessionFolder]:
    """The sessions a session was forked from, the nearest first, as far as they are still there."""
    seen = {session.id}
    current: SessionFolder | None = session
    while current is not None:
        point = current.metadata.get("forked_from")
        source: Any = point.get("session") if isinstance(point, dict) else None
        current = None if source in seen else store.get(source)
        if current is not None:
            seen.add(current.id)
            yield current


def find_continuation(store: SessionStore, session: SessionFolder) -> str | None:
    """The id of the latest session that took over all of a session and went on; None if there is none."""
    size = transcript_size(session.path)

    def continues_it(other: SessionFolder) -> bool:
        point = to_mapping(other.metadata.get("forked_from"))
        is_whole = (point.get("session"), point.get("bytes")) == (session.id, size)
        return is_whole and transcript_size(other.path) > size

    forks = filter(continues_it, _sessions_naming(session.id, store))
    latest = max(forks, key=lambda fork: str(fork.metadata.get("updated")), default=None)
    return None if latest is None else latest.id


def _sessions_naming(session_id: str, store: SessionStore) -> Iterator[SessionFolder]:
    """The sessions with an id in their metadata; parsing the metadata of thousands takes seconds."""
    for file in store.root.glob("*/metadata.json"):
        try:
            is_named = session_id.encode() in read_regular(file)
        except OSError:
            continue
        if is_named and (folder := store.get(file.parent.name)) is not None:
            yield folder


def _copy_id(origin: str, parent: str) -> str:
    """The id of the copy that a session makes of a sub-session."""
    digest = hashlib.sha256(f"{parent} {origin}".encode()).hexdigest()[:16]
    return f"{parent}-{digest}" if ID.fullmatch(f"{parent}-{digest}") else digest


def _runs(session: SessionFolder, names: set[str]) -> list[Call]:
    """The tool calls that gave a task to a sub-session."""
    return [
        call
        for call in session.conversation().calls
        if isinstance(call.input, dict)
        and "instruction" in call.input
        and any(name in (call.result or "") for name in names)
    ]
