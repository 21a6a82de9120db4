"""Folders for what is being put together: removed in the end, also those of killed processes."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amplifier_app.sources.fetch.staging import staging
from amplifier_support.files import write_atomically

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders cannot be locked")

HOLDER = """
import sys, time
from pathlib import Path
from amplifier_app.sources.fetch.staging import staging
from amplifier_support.files import write_atomically
with staging(Path(sys.argv[1])) as stage:
    (stage / "part").write_text("x")
    print(stage.name, flush=True)
    time.sleep(60)
"""


def test_folders_of_killed_processes_are_removed_and_those_of_live_ones_kept(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        name = holder.stdout.readline().strip()
        with staging(tmp_path) as stage:
            assert (tmp_path / name / "part").exists()
            assert stage.name != name
        holder.send_signal(signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with staging(tmp_path) as stage:
        assert [path.name for path in tmp_path.iterdir()] == [stage.name]
    assert list(tmp_path.iterdir()) == []


def test_a_stage_is_removed_when_its_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="failed"), staging(tmp_path):
        raise ValueError("failed")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("amplifier_support.files.try_lock", refuse)
    monkeypatch.setattr("amplifier_support.files._UNNAMED", None)
    with staging(tmp_path) as first, staging(tmp_path) as second:
        write_atomically(second / "file", b"content")
        assert first.is_dir()
        assert (second / "file").read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == []
