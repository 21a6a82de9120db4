"""Forks: byte-equal beginnings, made whole or not at all, and files put back where nothing is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.sessions.conversation import Conversation
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.removal import remove_leftovers
from amplifier_app.sessions.store import SessionStore
from amplifier_support.journal import CLEAR
from tests.app.sessions.killed import Killer
from tests.support.thorough import Scale


def calling(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_call", "id": one, "name": "bash", "input": {}} for one in ids]
    return {"role": "assistant", "content": [{"type": "text", "text": "Ünï"}, *blocks]}


def answer(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


HISTORY = [
    {"role": "system", "content": "the instruction"},
    {"role": "user", "content": "first"},
    calling("a", "b"),
    answer("a"),
    {"role": "user", "content": "a note", "metadata": {"source": "hook"}},
    answer("b"),
    {"role": "assistant", "content": "That was it."},
    CLEAR,
    {"role": "user", "content": "second"},
    calling("c"),
]
ENDS = {1: 6, 2: 7, 3: 10}
"""Step → number of records up to its last tool result."""


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    store = SessionStore(tmp_path)
    facts = {"prompts": 2, "usage": {"total_tokens": 9}, "spent": {"turns": 3}, "mode": "edits"}
    saved = store.create("source", project="/p", plan_yaml="name: x\n", title="T", **facts)
    for record in HISTORY:
        saved.append(record)
    saved.close()
    return store


@pytest.mark.parametrize("step", [1, 2, 3, None])
def test_a_fork_begins_with_the_same_bytes(store: SessionStore, step: int | None) -> None:
    source = store.find("source")
    before = {path.name: path.read_bytes() for path in source.path.iterdir()}
    fork = fork_session(store, source, step=step)
    data = (source.path / "transcript.jsonl").read_bytes()
    taken = (fork.path / "transcript.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    assert taken == b"".join(lines[: ENDS[step or 3]])
    assert fork.plan.read_bytes() == b"name: x\n"
    point = {"session": "source", "step": step or 3, "bytes": len(taken)}
    assert fork.metadata["forked_from"] == point
    assert fork.metadata["prompts"] == (1 if step in (1, 2) else 2)
    assert fork.metadata["mode"] == "edits"
    assert fork.metadata["title"] == f"Fork at step {step or 3}: T"
    assert not fork.metadata.keys() & {"usage", "spent"}
    assert {path.name for path in fork.path.iterdir()} == set(before)
    assert {path.name: path.read_bytes() for path in source.path.iterdir()} == before


def test_a_fork_is_made_while_the_source_is_written(store: SessionStore) -> None:
    writer = store.open("source")
    with open(store.root / "source" / "transcript.jsonl", "ab") as file:
        file.write(b'{"role": "user", "con')
    fork = fork_session(store, store.find("source"))
    assert len(fork.reading().file.records) == len(HISTORY)
    store.open(fork.id).close()
    writer.close()


def test_a_fork_of_a_sub_session_is_independent(store: SessionStore) -> None:
    saved = store.create("sub", project="/p", plan_yaml="x: 1\n", parent="source", agent="reader")
    saved.append({"role": "user", "content": "task"})
    saved.close()
    fork = fork_session(store, store.find("sub"))
    assert not fork.metadata.keys() & {"parent", "agent"}


def test_a_missing_step_or_plan_is_an_error(store: SessionStore) -> None:
    source = store.find("source")
    with pytest.raises(UsageError, match="no step 4; it has steps 1 to 3"):
        fork_session(store, source, step=4)
    source.plan.unlink()
    with pytest.raises(SessionError, match="cannot read the plan"):
        fork_session(store, source)
    assert [path.name for path in store.root.iterdir()] == ["source"]


def test_a_killed_fork_leaves_a_whole_session_or_none(store: SessionStore, scale: Scale) -> None:
    source = store.find("source")
    kill = Killer()
    seen: set[str] = set()
    for _ in range(scale(12, 40)):
        kill(lambda: fork_session(store, source, step=2))
        left = {path.name for path in store.root.iterdir() if not path.name.startswith(".")}
        for name in left - seen - {"source"}:
            metadata = json.loads((store.root / name / "metadata.json").read_text())
            assert metadata["forked_from"]["step"] == 2
            assert len(Conversation(store.find(name).reading().file.records).steps) == 2
        seen |= left
        remove_leftovers(store.root)
        assert not list(store.root.glob(".*"))
    assert len(seen) > 1
