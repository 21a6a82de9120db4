"""The folder for the temporary files of a session's commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amplifier_support.sandbox.session_state import PrivateFolder

PROGRAM = """
import os
import shutil
import signal
import sys

from amplifier_support.sandbox.session_state import PrivateFolder

folder = PrivateFolder()
assert os.path.isdir(folder.path)


def interrupt(frame, event, argument):
    if event == "call" and frame.f_code is shutil.rmtree.__code__:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


sys.setprofile(interrupt)
folder.remove()
"""


def test_a_signal_that_interrupts_its_removal_does_not_keep_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_it_is_removed_whatever_modes_its_folders_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = PrivateFolder()
    locked = Path(folder.path, "a", "b")
    locked.mkdir(parents=True)
    (locked / "file").touch()
    for each in (locked, locked.parent):
        each.chmod(0)
    folder.remove()
    assert not [*tmp_path.iterdir()]


def test_the_mode_of_the_folder_around_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o1777)
    folder = PrivateFolder()
    os.rmdir(folder.path)
    folder.remove()
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
