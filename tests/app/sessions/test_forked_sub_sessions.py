"""Which sub-sessions a fork takes over, and up to where."""

import json
from typing import Any

import pytest

from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.fork import fork_session, sub_session_of_fork
from amplifier_app.sessions.store import SessionStore


def texts(session: SessionFolder) -> list[Any]:
    return [record["content"] for record in session.reading().file.records]


@pytest.fixture
def store() -> SessionStore:
    """A session that runs a sub-agent, runs another, continues the first and reads its id."""
    store = SessionStore()
    saved = store.create("s", project="/p", plan_yaml="name: x\n")
    saved.append({"role": "user", "content": "go"})
    for number, (child, result) in enumerate(
        [("s-a", "one"), ("s-b", "one"), ("s-a", "two"), (None, "s-a s-b")]
    ):
        inputs = {} if child is None else {"instruction": "work"}
        call = {"type": "tool_call", "id": str(number), "name": "task", "input": inputs}
        text = result if child is None else json.dumps({"response": result, "session_id": child})
        saved.append({"role": "assistant", "content": [call]})
        saved.append({"role": "tool", "tool_call_id": str(number), "content": text})
    saved.close()
    for child, tasks in (("s-a", ("one", "two")), ("s-b", ("one",))):
        saved = store.create(
            child, project="/p", plan_yaml="name: x\n", parent="s", agent="reader", depth=1
        )
        saved.append({"role": "user", "content": "taken over from the parent"})
        for text in tasks:
            saved.append({"role": "user", "content": text})
            saved.append({"role": "assistant", "content": f"{text} done"})
        saved.close()
    return store


def fork(store: SessionStore, source: str, step: int | None = None) -> SessionFolder:
    return fork_session(store, store.find(source), step=step)


def test_a_copy_ends_where_the_sessions_part(store: SessionStore) -> None:
    early, late = fork(store, "s", 2), fork(store, "s", 3)
    first = ["taken over from the parent", "one", "one done"]
    copy = sub_session_of_fork(store, early, "s-a")
    assert copy is not None
    assert texts(copy) == first
    facts = {key: copy.metadata.get(key) for key in ("parent", "agent", "depth")}
    assert facts == {"parent": early.id, "agent": "reader", "depth": 1}
    again = sub_session_of_fork(store, early, "s-a")
    assert again is not None
    assert again.id == copy.id, "there is one copy"
    whole = sub_session_of_fork(store, late, "s-a")
    assert whole is not None
    assert texts(whole) == [*first, "two", "two done"]


def test_a_fork_of_a_fork_has_copies_by_every_id(store: SessionStore) -> None:
    middle = fork(store, "s", 2)
    copy = sub_session_of_fork(store, middle, "s-a")
    assert copy is not None
    last = fork(store, middle.id)
    found = [sub_session_of_fork(store, last, one) for one in ("s-a", copy.id)]
    assert {one.metadata["parent"] for one in found if one} == {last.id}
    assert len({one.id for one in found if one}) == 1
    assert sub_session_of_fork(store, last, "s-b") is not None, "from the first session"


def test_other_sub_sessions_are_unknown(store: SessionStore) -> None:
    early = fork(store, "s", 1)
    store.create("other", project="/p", parent="t", agent="reader").close()
    for session_id in ("s-b", "other", "s", early.id, "none", "../s-a", ""):
        assert sub_session_of_fork(store, early, session_id) is None
    assert sub_session_of_fork(store, store.find("s"), "s-a") is None, "not a fork"
