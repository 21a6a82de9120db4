"""Copies of a row's folders on another machine."""

import base64
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_batch.record.replica import Replica, apply_changes, find_folders, split_changes


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    for folder in ("sessions/a", "work/a"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    return tmp_path / "here"


def contents(root: Path) -> dict[str, Any]:
    """What a folder contains: the text or target of each entry, and whether it can be executed."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        text = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_text()
        found[str(path.relative_to(root))] = text, path.is_file() and os.access(path, os.X_OK)
    return found


def test_a_folder_that_cannot_be_listed_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = here / "work" / "a" / "hidden"
    hidden.mkdir()
    scandir = os.scandir

    # Permissions do not keep root, who may run the tests, from listing it.
    def refuse(path: Any) -> Any:
        if Path(path) == hidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    replica = Replica(here, ["sessions/a", "work/a", "work/missing"])
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SessionError, match=f"cannot read {hidden}: Permission denied"):
        replica.changes()
    with pytest.raises(SessionError, match="hidden"):
        Replica(here, ["work/a"], known=True)


def test_a_copy_follows_every_kind_of_change(here: Path) -> None:
    there, work = here.parent / "there", here / "work" / "a"
    log, metadata = here / "sessions/a/transcript.jsonl", here / "sessions/a/metadata.json"
    replica = Replica(here, ["sessions/a", "work/a"])

    def follow() -> list[dict[str, Any]]:
        changes = list(replica.changes())
        apply_changes(there, changes)
        assert contents(there) == contents(here)
        return changes

    log.write_text('{"role": "user"}\n')
    metadata.write_text("{}")
    (work / "deep" / "empty").mkdir(parents=True)
    (work / "deep" / "run.sh").write_text("echo")
    (work / "deep" / "run.sh").chmod(0o700)
    (work / "link").symlink_to("/etc/passwd")
    assert follow()[-1]["path"] == "sessions/a/metadata.json"
    assert follow() == []
    with log.open("a") as file:
        file.write('{"role": "assistant"}\n')
    (appended,) = follow()
    assert base64.b64decode(appended["data"]) == b'{"role": "assistant"}\n'
    # Another file in its place, a folder for a file and the other way round, and what is gone.
    other = log.with_name("other")
    other.write_text('{"role": "user", "content": "a longer one than before"}\n' * 2)
    other.replace(log)
    (work / "link").unlink()
    (work / "link").mkdir()
    (work / "deep" / "run.sh").unlink()
    (work / "deep" / "empty").rmdir()
    (work / "deep").rmdir()
    (work / "deep").write_text("now a file")
    follow()
    (work / "link").rmdir()
    (work / "link").symlink_to("deep")
    (work / "deep").unlink()
    follow()


def test_a_copy_follows_a_log_whose_incomplete_end_is_removed_first(here: Path) -> None:
    there, log = here.parent / "there", here / "sessions/a/transcript.jsonl"
    log.write_text('{"role": "user"}\n{"tool')
    apply_changes(there, [*Replica(here, ["sessions/a"]).changes()])
    replica = Replica(here, ["sessions/a"], known=True)
    with log.open("r+") as file:
        file.truncate(len('{"role": "user"}\n'))
        file.seek(0, os.SEEK_END)
        file.write('{"role": "assistant", "content": "done"}\n')
    apply_changes(there, [*replica.changes()])
    assert (there / "sessions/a/transcript.jsonl").read_text() == log.read_text()


def test_a_copy_never_has_a_transcript_without_the_files_that_it_reports(here: Path) -> None:
    replica = Replica(here, ["sessions/a", "work/a"])
    (here / "work/a/before").write_text("moved later")
    assert len(list(replica.changes())) == 3
    (here / "work/a/before").rename(here / "work/a/after")
    (here / "sessions/a/transcript.jsonl").write_text("{}\n")
    (here / "sessions/a/metadata.json").write_text("{}")
    paths = [change["path"] for change in replica.changes()]
    assert paths == [
        "work/a/after",
        "work/a/before",
        "sessions/a/transcript.jsonl",
        "sessions/a/metadata.json",
    ]


def test_an_append_to_what_the_copy_lacks_is_refused(here: Path) -> None:
    log = here / "sessions/a/transcript.jsonl"
    log.write_text("{}\n")
    change = {"path": "sessions/a/transcript.jsonl", "mode": 0o600, "at": 9, "data": "eA=="}
    with pytest.raises(SessionError, match="what comes before the change is missing"):
        apply_changes(here, [change])
    assert log.read_text() == "{}\n"


def test_files_that_disappear_meanwhile_are_left_out(here: Path) -> None:
    class Disappearing(Replica):
        def _scan(self) -> Any:
            yield from [*super()._scan()]
            (here / "work/a/temporary").unlink(missing_ok=True)

    (here / "work/a/temporary").write_text("for a moment")
    replica = Disappearing(here, ["work/a"])
    assert [change["path"] for change in replica.changes()] == ["work/a"]
    assert list(replica.changes()) == []


def test_large_files_are_copied_in_pieces(here: Path) -> None:
    text, path = "0123456789" * 500_001, f"work/a/{'n' * 255}"
    (here / path).write_text("old")
    replica, there, sizes = Replica(here, ["work/a"]), here.parent / "there", list[int]()
    apply_changes(there, [*replica.changes()])
    (here / path).write_text(text)
    for number in range(1_100):
        (here / f"work/a/link{number}").symlink_to("x/" * 2_000)
    for part, _ in split_changes(replica.changes()):
        apply_changes(there, part)
        # The sender may stop after any part.
        assert (there / path).stat().st_size in (3, len(text))
        sizes.append(len(json.dumps(part)))
    assert max(sizes) < 10_000_000
    assert contents(there / "work") == contents(here / "work")
    assert list(replica.changes()) == []


def test_locks_are_not_copied_and_sub_sessions_are_found(here: Path) -> None:
    (here / "sessions" / "a" / "lock").write_text("{}")
    (here / "sessions" / "a" / "metadata.json").write_text(
        '{"sub_sessions": ["b", "../../x", "gone"]}'
    )
    (here / "sessions" / "b").mkdir()
    folders = find_folders(here, "a", has_own=False)
    assert folders == ["sessions/a", "sessions/b"]
    paths = {change["path"] for change in Replica(here, folders).changes()}
    assert paths == {"sessions/a", "sessions/b", "sessions/a/metadata.json"}


@pytest.mark.parametrize("path", ["../x", "work/../../x", "work/a/out/x", "work/a/..", ""])
def test_no_change_leads_out_of_the_folder(here: Path, path: str) -> None:
    (here / "work" / "a" / "out").symlink_to(here.parent / "there")
    with pytest.raises(SessionError, match="cannot write"):
        apply_changes(here, [{"path": path, "mode": 0o600, "at": 0, "data": "eA=="}])
    assert not list((here.parent / "there").iterdir())
    assert not (here.parent / "x").exists()
