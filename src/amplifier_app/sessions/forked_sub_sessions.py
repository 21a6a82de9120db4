"""Sub-agents of a fork: copies of those of the session it was forked from, made when they are resumed.

The transcript of a fork names the sub-sessions of the other session. Resumed in the fork, such a
sub-session is forked too, as it was at the end of the step where the sessions diverge: the other session
keeps its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.conversation import Call
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import ID

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
    sources = {one.id: one for one in _sources(store, fork)}
    named = _find(store, session_id)
    if named is None or named.metadata.get("parent") not in sources:
        return None
    origin = [named, *_sources(store, named)][-1].id
    for parent in sources.values():
        spawned = _find(store, _copy_of(origin, parent.id)) or _find(store, origin)
        if spawned is not None and spawned.metadata.get("parent") == parent.id:
            return _copy(store, fork, parent, spawned, _copy_of(origin, fork.id))
    return None


def _copy(
    store: SessionStore,
    fork: SessionFolder,
    parent: SessionFolder,
    spawned: SessionFolder,
    copy_id: str,
) -> SessionFolder | None:
    if store.exists(copy_id):
        return store.find(copy_id)
    names = {spawned.id, *(one.id for one in _sources(store, spawned))}
    point = fork.metadata["forked_from"].get("step")
    if not isinstance(point, int):
        return None
    before = [call for call in _runs(fork, names) if call.step <= point]
    if not before:
        return None
    end = _end(spawned, len(_runs(parent, names)) - len(before))
    metadata = spawned.metadata
    facts = {key: metadata[key] for key in _OF_A_SUB_SESSION if key in metadata}
    try:
        return fork_session(store, spawned, end=end, session_id=copy_id, parent=fork.id, **facts)
    except SessionError:
        if store.exists(copy_id):  # by another task at the same time
            return store.find(copy_id)
        raise


def _sources(store: SessionStore, session: SessionFolder) -> Iterator[SessionFolder]:
    """The sessions a session was forked from, the nearest first, as far as they are still there."""
    seen = {session.id}
    current: SessionFolder | None = session
    while current is not None:
        point = current.metadata.get("forked_from")
        source: Any = point.get("session") if isinstance(point, dict) else None
        current = None if source in seen else _find(store, source)
        if current is not None:
            seen.add(current.id)
            yield current


def _find(store: SessionStore, session_id: Any) -> SessionFolder | None:
    known = isinstance(session_id, str) and ID.fullmatch(session_id) and store.exists(session_id)
    return store.find(session_id) if known else None


def _copy_of(origin: str, parent: str) -> str:
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


def _end(spawned: SessionFolder, later: int) -> int | None:
    """The number of records before the last tasks of a sub-session; None for all of them."""
    prompts = spawned.conversation().prompts
    return prompts[-later].end - 1 if 0 < later < len(prompts) else None
