"""Locks of settings and caches: one process at a time, and an error where there can be none."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from amplifier_app.base.locks import hold_lock
from amplifier_support.programs import Stopped
from tests.support.cli import run_amplifier


def test_others_wait_until_the_lock_is_released(tmp_path: Path) -> None:
    file, order = tmp_path / "new" / "a.lock", list[str]()

    def second() -> None:
        with hold_lock(file, None):
            order.append("second")

    with hold_lock(file, None):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(30)
    assert order == ["first", "second"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_waiting_ends_when_it_is_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with (
        hold_lock(tmp_path / "a.lock", None),
        pytest.raises(Stopped),
        hold_lock(tmp_path / "a.lock", stop),
    ):
        pass


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flock = tmp_path / "a.lock", fcntl.flock

    def remove(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        file.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove)
    with hold_lock(file, None):
        assert file.exists()


def test_a_file_system_without_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks that are mere files would stay with the first process that is killed."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="not implemented"), hold_lock(tmp_path / "a.lock", None):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_home_in_which_nothing_can_be_created_is_an_error(tmp_path: Path) -> None:
    done = run_amplifier("module", "add", "tool-web", home=Path("/proc"), cwd=tmp_path)
    assert done.code == 78, done.stderr
    assert "cannot lock /proc/.settings.lock" in done.stderr
