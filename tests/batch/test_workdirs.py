"""Where the rows of a batch run."""

import os
import socket
from pathlib import Path

import pytest

from amplifier_app.base.errors import AppError, ConfigError, Location
from amplifier_batch.input import Row
from amplifier_batch.record.folder import BatchFolder
from amplifier_batch.record.writer import writing
from amplifier_batch.workdirs import Workdir, Workdirs


def row(**fields: object) -> Row:
    return Row(1, Location("rows.jsonl", 1), "r1", dict(fields))


def test_a_copy_leaves_out_the_batch_inside_it_and_special_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = tmp_path / "out"
    (batch / "sessions").mkdir(parents=True)
    (tmp_path / "code.py").write_text("code")
    (tmp_path / "link").symlink_to("code.py")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        Workdirs("copy", tmp_path, batch / "work").of(row(), "r1").prepare()
    copied = batch / "work" / "r1"
    assert sorted(path.name for path in copied.rglob("*")) == ["code.py", "link"]


def test_a_copy_leaves_out_other_batches_while_they_run(tmp_path: Path) -> None:
    for name in ("running", "ended"):
        BatchFolder.create(tmp_path / "source" / name, {"rows": 1}, "")
    with writing(BatchFolder(tmp_path / "source" / "running")):
        Workdirs("copy:source", tmp_path, tmp_path / "out" / "work").of(row(), "r1").prepare()
    copied = tmp_path / "out" / "work" / "r1"
    assert [path.name for path in copied.iterdir()] == ["ended"]


def test_a_copy_that_fails_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out" / "work" / "r1"
    missing = Workdir("copy", str(tmp_path / "missing"), str(target))
    with pytest.raises(AppError, match="No such file"):
        missing.prepare()
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_field_that_no_path_can_have_is_an_error_of_its_row(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="the folder of row 'r1' is not a path") as caught:
        Workdirs("same:{{name}}", tmp_path, tmp_path / "out").of(row(name=name), "r1")
    assert caught.value.location == Location("rows.jsonl", 1)


def test_a_template_may_begin_in_the_middle_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "repos" / "app-1").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    workdirs = Workdirs("same:repos/app-{{n}}", tmp_path, tmp_path / "out")
    assert workdirs.of(row(n=1), "r1").target == str(tmp_path / "repos" / "app-1")
    with pytest.raises(ConfigError, match="is not in"):
        workdirs.of(row(n="1/../../other"), "r1")
