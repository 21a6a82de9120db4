"""A file is replaced whole or not at all."""

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from amplifier_support import files
from amplifier_support.files import (
    create_atomically,
    remove_unfinished,
    try_lock,
    write_atomically,
    write_private,
)
from tests.support.small_disk import file_size_limit


def resolve_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_existing_file_keeps_its_mode_and_a_new_one_gets_the_given_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o640)
    for path in (old, new):
        write_atomically(path, b"after", mode=0o600)
        assert path.read_bytes() == b"after"
    assert (resolve_mode(old), resolve_mode(new)) == (0o640, 0o600)
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


@pytest.mark.parametrize("write", [write_private, write_atomically])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, write) -> None:
    folder = tmp_path / "in-the-way"
    folder.mkdir()
    (folder / "file").write_text("kept")
    with pytest.raises(OSError, match="directory"):
        write(folder, b"after")
    assert os.listdir(tmp_path) == ["in-the-way"]
    assert (folder / "file").read_text() == "kept"


@pytest.mark.parametrize("unnamed", [True, False])
def test_files_of_killed_writers_are_removed_and_those_of_live_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr(files, "_UNNAMED", None)
    left, held = (tmp_path / f".amplifier-{digit * 16}.tmp" for digit in "ab")
    left.write_text("left")
    with held.open("w") as file:
        assert try_lock(file.fileno())
        write_private(tmp_path / "data", b"new")
        assert sorted(os.listdir(tmp_path)) == [held.name, "data"]
    write_private(tmp_path / "data", b"newer")
    assert held.exists()  # Once for each process is enough,
    remove_unfinished(tmp_path)  # unless it is asked for.
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_new_file_is_whole_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr(files, "_UNNAMED", None)
    create_atomically(tmp_path / "data", b"first", mode=0o640)
    assert resolve_mode(tmp_path / "data") == 0o640
    (tmp_path / "link").symlink_to("missing")
    for name in ("data", "link"):
        with pytest.raises(FileExistsError):
            create_atomically(tmp_path / name, b"second")
    with file_size_limit(10), pytest.raises(OSError, match="File too large"):
        create_atomically(tmp_path / "large", bytes(100))
    assert (tmp_path / "data").read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == ["data", "link"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_planted_link_is_replaced_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.setattr(files, "_UNNAMED", None)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o644)
    (tmp_path / "data").symlink_to(victim)
    write_private(tmp_path / "data", b"mine")
    assert (victim.read_text(), resolve_mode(victim)) == ("precious", 0o644)
    assert ((tmp_path / "data").read_text(), resolve_mode(tmp_path / "data")) == ("mine", 0o600)


def test_the_temporary_name_can_be_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, staging = tmp_path / "target", tmp_path / "staging"
    target.mkdir()
    staging.mkdir()
    (target / "data").write_text("old")
    renamed: list[str] = []
    replace = os.replace

    def note(source: str, name: str, **folders: int) -> None:
        renamed.extend(os.listdir(staging))
        staged = [name for name in os.listdir(target) if name != "data"]
        assert not (staged and os.listdir(staging))
        replace(source, name, **folders)

    monkeypatch.setattr(os, "replace", note)
    write_atomically(target / "data", b"new", staging=str(staging))
    assert renamed
    assert (target / "data").read_bytes() == b"new"
    assert os.listdir(staging) == []
    write_atomically(target / "data", b"newer", staging=str(tmp_path / "missing"))
    assert (target / "data").read_bytes() == b"newer"


def test_a_signal_right_after_the_file_was_replaced_stays_that_signal(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def interrupt(frame: object, event: str, call: object) -> None:
        if event == "c_return" and call is os.replace:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_private(file, b"new")
    finally:
        sys.setprofile(None)
    assert file.read_text() == "new"
    assert [*tmp_path.iterdir()] == [file]
