"""A file is replaced whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from amplifier_support.atomic_write import remove_unfinished, write_atomically, write_private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_existing_file_keeps_its_mode_and_a_new_one_gets_the_given_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    old.chmod(0o640)
    for path in (old, new):
        write_atomically(path, b"after", mode=0o600)
        assert path.read_bytes() == b"after"
    assert (mode_of(old), mode_of(new)) == (0o640, 0o600)
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


def test_what_a_killed_writer_left_is_overwritten_or_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".data.new"
    leftover.write_text("a longer text than the next one")
    write_private(tmp_path / "data", b"short")
    assert (tmp_path / "data").read_bytes() == b"short"
    leftover.write_text("again")
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["data"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".data.new").symlink_to(victim)
    with pytest.raises(OSError, match="it is a link"):
        write_private(tmp_path / "data", b"mine")
    assert victim.read_text() == "precious"
