"""How copies are kept: for the user alone, not without bounds, and never in the way of a tool."""

import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_backup
from tests.modules.hooks_backup.conftest import edited, ran, wrote


def objects(session: Path) -> list[Path]:
    return sorted(path for path in (session / "backups" / "objects").rglob("*") if path.is_file())


def records(session: Path) -> list[dict[str, Any]]:
    lines = (session / "backups" / "index.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("umask", [0, 0o077])
async def test_only_the_user_may_read_them(start: Any, umask: int) -> None:
    old = os.umask(umask)
    try:
        s = await start()
        s.write("a.txt", "0")
        await s.turn("first", edited("a.txt", "0", "1"))
    finally:
        os.umask(old)
    for path in (s.session / "backups", *(s.session / "backups").rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


async def test_nothing_is_made_before_there_is_something_to_keep(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", ("read_file", {"file_path": "a.txt"}))
    assert await s.nothing_to_undo()
    assert s.listed() == []
    assert list(s.session.iterdir()) == []


async def test_the_same_content_is_kept_once(start: Any) -> None:
    s = await start()
    for name in ("a.txt", "b.txt"):
        s.write(name, "same")
    await s.turn("first", wrote("a.txt", "x"), wrote("b.txt", "y"), wrote("a.txt", "same"))
    await s.turn("second", wrote("a.txt", "z"))
    assert [path.read_text() for path in objects(s.session)] == ["same", "x"]


async def test_a_planted_link_is_refused(
    start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s = await start()
    (tmp_path / "elsewhere").mkdir()
    (s.session / "backups").symlink_to(tmp_path / "elsewhere")
    s.write("a.txt", "0")
    ids = await s.begin("first")
    data = await s.pre(*wrote("a.txt", "1"), **ids)
    assert (await s.run(data)).success
    await s.pre(*wrote("a.txt", "2"), **ids)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert caplog.text.count("cannot back up changed files") == 1
    assert "backups is a link" in caplog.text


async def test_nothing_is_removed_through_a_planted_link(start: Any, tmp_path: Path) -> None:
    s = await start()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own").write_text("keep")
    folders = s.session / "backups" / "objects"
    folders.mkdir(parents=True)
    for number in range(256):
        (folders / f"{number:02x}").symlink_to(elsewhere)
    s.write("a.txt", "0")
    await s.turn("first", wrote("a.txt", "1"))
    assert [path.read_text() for path in elsewhere.iterdir()] == ["keep"]


async def test_a_file_too_large_to_copy_is_reported_on_undo(start: Any) -> None:
    s = await start(max_file_bytes=100)
    s.write("a.txt", "x" * 101)
    s.write("b.txt", "x" * 100)
    await s.turn("first", wrote("a.txt", "1"), wrote("b.txt", "1"))
    undone = await s.undo(force=True)
    assert undone["restored"] == ["b.txt"]
    assert undone["refused"]["a.txt"] == (
        "no copy was kept: it has 101 bytes; the limit for copies is 100 bytes"
    )
    # What force could not do either does not stand in the way of earlier turns.
    assert await s.nothing_to_undo(force=True)


async def test_large_files_are_distinguished(start: Any) -> None:
    s = await start()
    s.write("a.txt", "x" * 3_000_000)
    await s.turn("first", edited("a.txt", "x" * 3_000_000, "y" * 12_000_000))
    await s.turn("second", edited("a.txt", "y" * 12_000_000, "z"))
    assert "12000000 bytes" in (await s.undo())["refused"]["a.txt"]
    # It was touched; its content is not read again to find that it is the same.
    s.write("a.txt", "y" * 12_000_000)
    assert set((await s.undo())["refused"]) == {"a.txt"}
    assert (await s.undo(force=True))["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "x" * 3_000_000}


async def test_an_untouched_large_file_is_restored(start: Any) -> None:
    s = await start()
    s.write("a.txt", "x")
    await s.turn("first", wrote("a.txt", "y" * 12_000_000), wrote("b.txt", "z" * 12_000_000))
    undone = await s.undo()
    assert (undone["restored"], undone["removed"]) == (["a.txt"], ["b.txt"])
    assert s.files() == {"a.txt": "x"}


async def test_the_oldest_turns_make_room(start: Any) -> None:
    s = await start(max_bytes=1000)
    for n, prompt in enumerate([*(f"turn {n}" for n in range(5)), "x" * 81]):
        s.write("a.txt", str(n) * 300)
        await s.turn(prompt, wrote("a.txt", "new"))
    assert sum(path.stat().st_size for path in objects(s.session)) <= 1000
    assert [turn["prompt"] for turn in s.listed()] == [f"{'x' * 79}…", "turn 4"]
    assert (await s.undo())["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "5" * 300}


async def test_a_turn_that_takes_all_room_is_kept_in_part(start: Any) -> None:
    s = await start(max_bytes=1000)
    for n in range(5):
        s.write(f"{n}.txt", str(n) * 300)
    await s.turn("first", *(wrote(f"{n}.txt", "new") for n in range(5)))
    undone = await s.undo()
    assert undone["restored"] == ["0.txt", "1.txt", "2.txt"]
    assert "no copy was kept: the copies for this prompt alone" in undone["refused"]["4.txt"]


async def test_old_turns_are_removed_when_the_session_is_used_again(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("b.txt", "b")
    await s.turn("long ago", edited("a.txt", "0", "1"))
    await s.turn("lately", edited("b.txt", "b", "c"))
    index = s.session / "backups" / "index.jsonl"
    known = records(s.session)
    for record in known:
        if record["prompt"] == "long ago":
            record["time"] = time.time() - 31 * 86400
    index.write_text("".join(json.dumps(record) + "\n" for record in known))
    await s.close()
    s = await start()
    assert len(objects(s.session)) == 2
    await s.turn("now", edited("a.txt", "1", "2"))
    assert [turn["prompt"] for turn in s.listed()] == ["now", "lately"]
    assert sorted(path.read_text() for path in objects(s.session)) == ["1", "b"]


async def test_a_damaged_copy_is_not_put_back(start: Any) -> None:
    s = await start()
    s.write("a.txt", "zero")
    await s.turn("first", edited("a.txt", "zero", "one"))
    objects(s.session)[0].write_text("nil!")
    assert (await s.undo(force=True))["refused"] == {"a.txt": "the copy is gone or damaged"}
    assert s.files() == {"a.txt": "one"}


async def test_an_incomplete_copy_of_a_killed_run_is_written_again(start: Any) -> None:
    s = await start()
    s.write("a.txt", "zero")
    await s.turn("first", edited("a.txt", "zero", "one"))
    objects(s.session)[0].write_text("ze")
    s.write("a.txt", "zero")
    await s.turn("second", edited("a.txt", "zero", "two"))
    assert (await s.undo())["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "zero"}


async def test_a_record_that_makes_no_sense_is_left_out(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"))
    with (s.session / "backups" / "index.jsonl").open("a") as file:
        for line in ('{"kind": "changes"}', "torn", '{"kind": "undone", "turn": 3}', "[]"):
            file.write(line + "\n")
        bad = {"kind": "changes", "turn": "t", "time": 1, "files": [{"path": "x", "before": 3}]}
        file.write(json.dumps(bad) + "\n")
    with caplog.at_level(logging.WARNING):
        assert (await s.undo())["restored"] == ["a.txt"]
    assert "skipping an invalid record" in caplog.text


async def test_a_full_disk_does_not_stop_the_tool(start: Any, monkeypatch: Any) -> None:
    import resource

    s = await start()
    s.write("a.txt", "0" * 200_000)
    ids = await s.begin("first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        result = await s.call(*wrote("a.txt", "small"), **ids)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.success
    assert s.files() == {"a.txt": "small"}


async def test_a_session_that_is_not_saved_keeps_copies_while_it_runs(
    start: Any, tmp_path: Path
) -> None:
    stale = tmp_path / "cache" / "backups" / "stale"
    stale.mkdir(parents=True)
    os.utime(stale, (0, 0))
    s = await start(saved=False)
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"))
    (kept,) = (tmp_path / "cache" / "backups").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert (await s.undo())["restored"] == ["a.txt"]
    await s.close()
    assert list((tmp_path / "cache" / "backups").iterdir()) == []


async def test_without_any_place_named_a_temporary_one_is_used(tmp_path: Path) -> None:
    from tests.modules.hooks_backup.conftest import Session

    s = await Session(tmp_path, None).mount()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), ran("rm a.txt"))
    assert (await s.undo())["restored"] == ["a.txt"]
    await s.close()
    assert s.files() == {"a.txt": "0"}


async def test_a_sub_session_adds_to_the_turn_of_the_one_above(start: Any) -> None:
    above = await start()
    above.write("a.txt", "0")
    ids = await above.begin("hand it over")
    below = MockCoordinator()
    below.register_capability("session.working_dir", str(above.folder))
    shared = above.coordinator.get_capability("backup.session")
    below.register_capability("backup.session", shared)
    stop = await hooks_backup.mount(below, {})
    await below.hooks.emit("prompt:submit", {"prompt": "the task", "turn_id": "inner"})
    data = {"tool_name": "write_file", "tool_call_id": "1", "tool_input": {"path": "a.txt"}}
    await below.hooks.emit("tool:pre", {**data, "turn_id": "inner"})
    above.write("a.txt", "1")
    await below.hooks.emit("tool:post", {**data, "turn_id": "inner", "result": {"success": True}})
    stop()
    await above.call(*wrote("b.txt", "b"), **ids)
    (turn,) = above.listed()
    assert (turn["prompt"], len(turn["files"])) == ("hand it over", 2)
    await above.undo()
    assert above.files() == {"a.txt": "0"}


async def test_loops_without_ids_have_turns_too(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    for n in range(2):
        await s.coordinator.hooks.emit("prompt:submit", {"prompt": f"turn {n}"})
        data = {"tool_name": "write_file", "tool_input": {"path": "a.txt"}}
        await s.coordinator.hooks.emit("tool:pre", data)
        s.write("a.txt", str(n + 1))
        await s.coordinator.hooks.emit("tool:post", data)
    assert (await s.undo())["prompt"] == "turn 1"
    assert s.files() == {"a.txt": "1"}
