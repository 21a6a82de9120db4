"""Removing sessions: whole or not at all, whenever the process dies."""

import json
from pathlib import Path

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_app.sessions.removal import (
    REMOVED,
    UNFINISHED,
    remove_leftovers,
    remove_sessions,
    with_sub_sessions,
)
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import SessionSummary
from tests.app.sessions.killed import Killer
from tests.support.thorough import Scale


def summary(session_id: str, parent: str | None = None, agent: str | None = None) -> SessionSummary:
    return SessionSummary(session_id, "", parent=parent, agent=agent)


def test_sub_sessions_come_before_the_session_that_spawned_them() -> None:
    summaries = [
        summary("lead"),
        summary("child", "lead", "reader"),
        summary("deeper", "child", "reader"),
        summary("fork", "lead"),
        summary("loop", "loop", "reader"),
    ]
    assert with_sub_sessions("lead", summaries) == ["deeper", "child", "lead"]
    assert with_sub_sessions("loop", summaries) == ["loop"]


def test_a_killed_removal_leaves_each_session_whole_or_gone(tmp_path: Path, scale: Scale) -> None:
    store = SessionStore(tmp_path)
    kill = Killer()
    for _ in range(scale(10, 40)):
        for name in ("lead", "child"):
            if store.get(name):
                continue
            saved = store.create(name, project="/p")
            saved.append({"role": "user", "content": name})
            saved.close()
            for number in range(40):
                (tmp_path / name / f"file-{number}").write_text("x")
        kill(lambda: remove_sessions(tmp_path, ["child", "lead"]))
        left = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
        assert left in ([], ["lead"]) or sorted(left) == ["child", "lead"]
        for name in left:
            assert len(list((tmp_path / name).glob("file-*"))) == 40
            assert store.read(name)[1] == [{"role": "user", "content": name}]
            assert json.loads((tmp_path / name / "metadata.json").read_text())["id"] == name
        remove_leftovers(tmp_path)
        assert not list(tmp_path.glob(".*"))


def test_leftovers_in_use_and_links_are_left_alone(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for name in (f"{UNFINISHED}old", f"{REMOVED}old"):
        (tmp_path / name).mkdir()
    held = store.create("held", project="/p")
    (tmp_path / "held").rename(tmp_path / f"{UNFINISHED}held")
    (tmp_path / "target").mkdir()
    (tmp_path / f"{REMOVED}link").symlink_to(tmp_path / "target")
    assert sorted(remove_leftovers(tmp_path)) == [f"{REMOVED}old", f"{UNFINISHED}old"]
    assert (tmp_path / "target").is_dir()
    held.close()
    assert remove_leftovers(tmp_path) == [f"{UNFINISHED}held"]


def test_one_session_in_use_keeps_all_of_them(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.create("a", project="/p").close()
    held = store.create("b", project="/p")
    with pytest.raises(SessionError, match="b is in use"):
        remove_sessions(tmp_path, ["a", "b"])
    held.close()
    assert store.get("a")
