"""Undo restores what tools changed: by turns, file by file, and only where nothing is lost."""

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.modules.hooks_backup.conftest import edited, ran, wrote
from tests.support.renames import assert_untouched, racing_renames
from tests.support.thorough import Scale


async def test_a_turn_is_taken_back_whole(start: Any) -> None:
    s = await start()
    s.write("a.txt", "one\n")
    s.write("b.txt", "b\n")
    await s.turn(
        "change things",
        edited("a.txt", "one", "two"),
        wrote("new/deep/c.txt", "c"),
        wrote("new/d.txt", "d"),
        edited("a.txt", "two", "three"),
        wrote("b.txt", "B"),
    )
    undone = await s.undo()
    assert s.files() == {"a.txt": "one\n", "b.txt": "b\n"}
    assert [path.name for path in s.folder.iterdir() if path.is_dir()] == []
    assert undone["prompt"] == "change things"
    assert undone["restored"] == ["a.txt", "b.txt"]
    assert undone["removed"] == ["new/deep/c.txt", "new/d.txt"]
    assert (undone["refused"], undone["left"]) == ({}, 0)
    assert await s.nothing_to_undo()


async def test_a_second_undo_goes_one_turn_further_back(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    for n in range(3):
        await s.turn(f"turn {n}", edited("a.txt", str(n), str(n + 1)))
    await s.turn("only looks", ("read_file", {"file_path": "a.txt"}))
    assert [(await s.undo())["left"], s.files()] == [2, {"a.txt": "2"}]
    assert [(await s.undo())["left"], s.files()] == [1, {"a.txt": "1"}]
    await s.turn("again", edited("a.txt", "1", "one"))
    assert (await s.undo())["prompt"] == "again"
    assert ((await s.undo())["prompt"], s.files()) == ("turn 0", {"a.txt": "0"})
    assert await s.nothing_to_undo()


async def test_a_resumed_session_undoes_the_last_turn(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"))
    await s.turn("second", edited("a.txt", "1", "2"))
    await s.undo()
    await s.close()
    s = await start()
    assert ((await s.undo())["prompt"], s.files()) == ("first", {"a.txt": "0"})


async def test_a_file_that_has_changed_since_is_left_alone(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("b.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), edited("b.txt", "0", "1"), wrote("c", "c"))
    s.write("a.txt", "mine")
    s.write("c", "mine too")
    undone = await s.undo()
    assert s.files() == {"a.txt": "mine", "b.txt": "0", "c": "mine too"}
    assert undone["restored"] == ["b.txt"]
    assert set(undone["refused"]) == {"a.txt", "c"}
    assert undone["refused"]["a.txt"] == "it was changed since, but not by this session"


async def test_force_restores_changed_files_and_keeps_their_content(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"))
    await s.turn("second", edited("a.txt", "1", "2"))
    s.write("a.txt", "mine")
    assert set((await s.undo())["refused"]) == {"a.txt"}
    undone = await s.undo(force=True)
    assert (undone["prompt"], undone["restored"], s.files()) == (
        "second",
        ["a.txt"],
        {"a.txt": "1"},
    )
    (saved,) = undone["saved"]
    kept = s.session / "backups" / "objects" / saved["sha256"][:2] / saved["sha256"]
    assert kept.read_text() == "mine"
    assert ((await s.undo(force=True))["prompt"], s.files()) == ("first", {"a.txt": "0"})


async def test_force_at_once_and_a_file_that_was_deleted_since(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("sub/b.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), edited("sub/b.txt", "0", "1"))
    (s.folder / "a.txt").unlink()
    (s.folder / "sub" / "b.txt").unlink()
    (s.folder / "sub").rmdir()
    assert (await s.undo())["refused"]["a.txt"] == "it was deleted since"
    assert (await s.undo(force=True))["restored"] == ["a.txt", "sub/b.txt"]
    assert s.files() == {"a.txt": "0", "sub/b.txt": "0"}


async def test_a_file_others_changed_during_the_turn_is_left_alone(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    ids = await s.begin("first")
    await s.call(*edited("a.txt", "0", "1"), **ids)
    s.write("a.txt", "1 and mine")
    await s.call(*edited("a.txt", "1", "2"), **ids)
    undone = await s.undo()
    assert s.files() == {"a.txt": "2 and mine"}
    assert undone["refused"]["a.txt"] == "it was also changed by something else during the turn"


async def test_parallel_calls_are_not_foreign_changes(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0 x")
    ids = await s.begin("first")
    one = await s.pre(*edited("a.txt", "0", "1"), **ids)
    other = await s.pre(*edited("a.txt", "x", "y"), **ids)
    await s.run(one)
    await s.run(other)
    assert s.files() == {"a.txt": "1 y"}
    assert (await s.undo())["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "0 x"}


async def test_mode_and_bytes_come_back(start: Any) -> None:
    s = await start()
    path = s.folder / "run.sh"
    data = bytes(range(256))
    path.write_bytes(data)
    path.chmod(0o750)
    await s.turn("first", wrote("run.sh", "text"), ran("rm run.sh"))
    assert not path.exists()
    await s.undo()
    assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


async def test_a_call_that_changes_nothing_is_not_recorded(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    results = await s.turn(
        "first",
        edited("a.txt", "missing", "x"),
        wrote("../outside.txt", "x"),
        wrote("a.txt", "0"),
        ran("cat a.txt"),
    )
    assert [result.success for result in results] == [False, False, True, True]
    assert s.listed() == []
    assert await s.nothing_to_undo()
    assert s.events == []


async def test_a_file_moved_and_moved_back_is_unchanged(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), edited("a.txt", "1", "0"), wrote("b", "b"))
    assert [file["path"] for file in s.listed()[0]["files"]] == [str(s.folder / "b")]


async def test_a_run_that_was_killed_leaves_its_call_in_doubt(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("b.txt", "0")
    ids = await s.begin("first")
    await s.pre(*wrote("a.txt", "1"), **ids)
    await s.pre(*wrote("b.txt", "1"), **ids)
    s.write("a.txt", "half of it")
    # Killed here: the end of the calls is never reported.
    s = await start()
    undone = await s.undo()
    assert undone["refused"] == {
        "a.txt": "the run ended during the change, so its content may not be from this session"
    }
    assert undone["restored"] == ["b.txt"]
    assert (await s.undo(force=True))["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "0", "b.txt": "0"}


async def test_a_call_that_was_stopped_is_taken_back(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    ids = await s.begin("first")
    data = await s.pre(*wrote("a.txt", "1"), **ids)
    s.write("a.txt", "1")
    await s.coordinator.hooks.emit("tool:error", {**data, "error": {"type": "Interrupted"}})
    assert (await s.undo())["restored"] == ["a.txt"]
    other = await s.begin("second")
    await s.pre(*wrote("a.txt", "2"), **other)
    s.write("a.txt", "2")
    await s.coordinator.hooks.emit("execution:end", other)
    assert (await s.undo())["restored"] == ["a.txt"]
    assert s.files() == {"a.txt": "0"}


async def test_the_model_is_informed_once_with_the_next_prompt(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), wrote("new</x>\n.txt", "n"))
    await s.undo()
    await s.close()
    s = await start()
    await s.begin("second")
    assert s.said.action == "inject_context"
    assert s.said.context_injection_role == "user"
    assert not s.said.ephemeral
    assert s.said.context_injection == (
        '<system-reminder source="hooks-backup">\n'
        "The user has undone changes you made to files. Read them again before you continue:\n"
        "- a.txt: as it was before\n"
        "- new<\\/x>\\n.txt: removed\n"
        "</system-reminder>"
    )
    await s.begin("third")
    assert s.said.action == "continue"


async def test_events_report_copies_and_undo(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    await s.turn("first", edited("a.txt", "0", "1"), wrote("b.txt", "b"))
    await s.undo()
    (_, one), (_, two), (name, undone) = s.events
    assert one["path"] == str(s.folder / "a.txt")
    assert one["bytes"] == 1
    assert len(one["sha256"]) == 64
    assert one["tool_name"] == "edit_file"
    assert one["turn_id"] == two["turn_id"] == undone["turn_id"]
    assert one["tool_call_id"] != two["tool_call_id"]
    assert (two["sha256"], two["bytes"]) == (None, 0)
    assert name == "backup:restored"
    assert undone["restored"] == [str(s.folder / "a.txt")]
    assert undone["removed"] == [str(s.folder / "b.txt")]


async def test_the_list_shows_the_changes_of_each_turn(start: Any) -> None:
    s = await start()
    s.write("a.txt", "0")
    s.write("b.txt", "0")
    await s.turn("first\nprompt " + "x" * 100, edited("a.txt", "0", "1"), wrote("c", "c"))
    await s.turn("second", ran("rm b.txt"))
    await s.undo()
    second, first = s.listed()
    assert (second["prompt"], second["undone"], first["undone"]) == ("second", True, False)
    assert first["prompt"] == "first prompt " + "x" * 66 + "…"
    assert [(Path(f["path"]).name, f["change"]) for f in (*second["files"], *first["files"])] == [
        ("b.txt", "deleted"),
        ("a.txt", "changed"),
        ("c", "created"),
    ]


# -- never through a link --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_nothing_is_put_back_through_a_link(start: Any, tmp_path: Path, what: str) -> None:
    s = await start()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("1")
    s.write("sub/a.txt", "0")
    await s.turn("first", edited("sub/a.txt", "0", "1"), wrote("sub/new.txt", "n"))
    (outside / "new.txt").write_text("n")
    if what == "file":
        (s.folder / "sub" / "a.txt").unlink()
        (s.folder / "sub" / "a.txt").symlink_to(outside / "a.txt")
    else:
        os.rename(s.folder / "sub", s.folder / "old")
        (s.folder / "sub").symlink_to(outside)
    for force in (False, True):
        undone = await s.undo(force=force)
        assert undone["refused"]["sub/a.txt"] == "its path now leads through a link"
    assert {path.name: path.read_text() for path in outside.iterdir()} == {
        "a.txt": "1",
        "new.txt": "n",
    }


async def test_racing_renames_never_lead_out(start: Any, tmp_path: Path, scale: Scale) -> None:
    s = await start()
    outside = tmp_path / "other"
    done = {"restored": 0, "refused": 0}
    with racing_renames(s.folder, outside):
        until = time.monotonic() + scale(0.3, 10)
        while time.monotonic() < until or not min(done.values()):
            ids = await s.begin("race")
            await s.call(*wrote("spot/new.txt", "x"), **ids)
            await s.call(*wrote("leaf", "x"), **ids)
            for force in (False, True):
                if not await s.nothing_to_undo(force=force):
                    undone = s.events[-1][1]
                    done["restored"] += len(undone["restored"]) + len(undone["removed"])
                    done["refused"] += len(undone["refused"])
    assert_untouched(outside)


async def test_no_copy_is_made_through_a_link_that_leads_out(start: Any, tmp_path: Path) -> None:
    s = await start()
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (s.folder / "link.txt").symlink_to(secret)
    await s.turn("first", wrote("link.txt", "x"), wrote("../secret.txt", "y"), ran("wc link.txt"))
    objects = s.session / "backups" / "objects"
    assert [path for path in objects.rglob("*") if path.is_file()] == []


async def test_a_link_inside_leads_to_the_file_that_is_changed(start: Any) -> None:
    s = await start()
    s.write("real.txt", "0")
    (s.folder / "link.txt").symlink_to("real.txt")
    await s.turn("first", edited("link.txt", "0", "1"))
    assert (await s.undo())["restored"] == ["real.txt"]
    assert (s.folder / "link.txt").is_symlink()
    assert s.files() == {"real.txt": "0"}


async def test_outside_of_the_working_directory_a_path_has_to_be_granted(
    start: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text("0")

    async def change(s: Any) -> None:
        ids = await s.begin("first")
        values = {"path": str(other / "a.txt"), "content": "1"}
        data = await s.pre("write_file", values, **ids)
        (other / "a.txt").write_text("1")
        await s.coordinator.hooks.emit("tool:post", {**data, "result": {"success": True}})

    s = await start()
    await change(s)
    undone = await s.undo(force=True)
    assert "outside the backed-up folders" in undone["refused"][str(other / "a.txt")]
    (other / "a.txt").write_text("0")
    s = await start(paths=[".", str(other)])
    await change(s)
    assert (await s.undo())["restored"] == [str(other / "a.txt")]
    assert (other / "a.txt").read_text() == "0"
