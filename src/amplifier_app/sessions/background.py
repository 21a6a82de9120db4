"""Runs that go on in a process of their own: their files in the session's folder, and how far they are.

run.json    the result of the run, as `--output json` prints it; empty while it runs
run.log     what it wrote to stderr
socket      where it takes messages and answers; see `amplifier_app.commands.run.attended`
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base.outcome import OK, Ending, Outcome
from amplifier_app.sessions.lock import is_locked
from amplifier_app.sessions.summary import RESULT_FILE, WAITING_FILE
from amplifier_app.sessions.waiting import Waiting
from amplifier_support.journal import parse

LOG, SOCKET = "run.log", "socket"

_LOOK_SECONDS = 0.01


def is_running(folder: Path) -> bool:
    """Return True if a process has the session in a folder open."""
    return is_locked(folder / "lock")


def is_detached(folder: Path, stdout: int) -> bool:
    """Return True if this process runs a session in the background: its stdout is the result's file."""
    try:
        return os.path.samestat(os.fstat(stdout), os.stat(folder / RESULT_FILE))
    except OSError:
        return False


@contextlib.contextmanager
def socket_address(folder: Path) -> Generator[str]:
    """The address of a session's socket, which is shorter than its path: a UNIX address has at most 107 bytes."""
    path = str(folder / SOCKET)
    if not os.path.isdir("/proc/self/fd"):
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of the last detached run of a session; None without one, or if it was killed."""
    try:
        data = (folder / RESULT_FILE).read_bytes()
    except OSError:
        return None
    # With `--output stream-json`, the result is the last event.
    result = parse(data) or parse(data.rstrip().rpartition(b"\n")[2])
    return result if result is not None and "outcome" in result else None


def restore_outcome(result: Mapping[str, Any]) -> Outcome:
    """Return the outcome in a result."""
    ending = next((known for known in Ending if known.value == result.get("outcome")), Ending.ERROR)
    error = result.get("error")
    return OK if error is None else Outcome(ending, error["message"], error.get("hint"))


def is_active(folder: Path) -> bool:
    """Return True if a session runs; in the background also before it opens and until its result is written."""
    # The process that writes the result holds a lock on its file.
    return is_running(folder) or (read_result(folder) is None and is_locked(folder / RESULT_FILE))


def wait_for_end(folder: Path, seconds: float) -> None:
    """Wait until a session has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and is_active(folder):
        time.sleep(_LOOK_SECONDS)


def describe_state(folder: Path) -> str:
    """`running`, `waiting for approval`, `ended (3)` or `interrupted`; empty for a session that just ended."""
    if is_running(folder):
        return "running"
    if (folder / WAITING_FILE).exists() and Waiting(folder).open:
        return "waiting for approval"
    if not (folder / RESULT_FILE).exists():
        return ""
    result = read_result(folder)
    if result is None:
        return "interrupted"
    code = result.get("exit_code")
    return "" if code == 0 else f"ended ({code})"
