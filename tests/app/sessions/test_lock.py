"""The lock of a session, and processes that only look whether it is held."""

import threading
from pathlib import Path

import pytest

from amplifier_app.sessions.lock import InUse, SessionLock, is_locked
from tests.support.thorough import Scale


def test_looking_at_a_lock_never_keeps_another_from_taking_it(tmp_path: Path, scale: Scale) -> None:
    file, other, ended = tmp_path / "lock", tmp_path / "other", threading.Event()
    other.touch(0o600)
    seen: set[bool] = set()

    def look() -> None:
        while not ended.is_set():
            seen.add(is_locked(other))
            is_locked(file)

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    try:
        for _ in range(scale(300, 1000)):
            SessionLock(file, "s").release()
    finally:
        ended.set()
        for thread in looking:
            thread.join()
    assert seen == {False}


def test_a_lock_is_seen_with_its_holder_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    assert not is_locked(file)
    assert not file.exists()  # One who only looks leaves nothing behind.
    lock = SessionLock(file, "s")
    assert is_locked(file)
    with pytest.raises(InUse, match="session s is in use"):
        SessionLock(file, "s")
    lock.release()
    assert not is_locked(file)
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_locked(tmp_path / "link" / "lock")
