"""A process that stays, however it is asked to end; what `tests/support/lingering.py` leaves behind.

    lingering_process.py NUMBER [TRICK ...]

Fifty of them are started at once, in the sandbox: standard library only, and nothing that costs more than the
start of the interpreter.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    import signal
    from collections.abc import Callable
else:
    import _signal as signal

_CLONE = {"x86_64": 56, "aarch64": 220}
_EXIT = {"x86_64": 60, "aarch64": 93}
_CLONE_VFORK, _CLONE_PARENT = 0x4000, 0x8000
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PTRACE_TRACEME = 15, 36, 0
_CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def stay(number: str, tricks: list[str]) -> None:
    """Hold a lock, do the tricks, and wait for ever."""
    folder = os.path.dirname(os.path.abspath(__file__))
    lock = os.open(f"{folder}/{number}.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)
    # What it starts holds the lock as well.
    os.set_inheritable(lock, True)
    for trick in tricks:
        if trick in _FIRST:
            _FIRST[trick](folder)
    os.close(os.open(f"{folder}/{number}.started", os.O_CREAT | os.O_WRONLY))
    for trick in tricks:
        if trick in _LAST:
            _LAST[trick](folder)
    _wait()


def _libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None)


def _fork(folder: str) -> None:
    """Go on in a child whose parent stays."""
    if os.fork():
        _wait()


def _wait() -> None:
    while True:
        time.sleep(60)


def _daemon(folder: str) -> None:
    for step in (os.setsid, lambda: None):
        if os.fork():
            os._exit(0)
        step()
    os.chdir("/")
    os.umask(0)
    for descriptor in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)


def _cloned(flags: int) -> int:
    return _libc().syscall(_CLONE[os.uname().machine], flags | signal.SIGCHLD, 0, 0, 0, 0)


def _sibling(folder: str) -> None:
    """Go on as a child of the parent's parent."""
    if _cloned(_CLONE_PARENT) > 0:
        os._exit(0)


def _suspended(folder: str) -> None:
    """Go on in a child for whose end the kernel suspends the parent."""
    if _cloned(_CLONE_VFORK) > 0:
        _wait()


def _adopter(folder: str) -> None:
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _spawn(folder: str) -> None:
    arguments = [sys.executable, "-I", "-S", *sys.argv[:2]]
    os.posix_spawn(sys.executable, arguments, os.environ, setsid=True)
    os._exit(0)


def _vfork(folder: str) -> None:
    import subprocess

    line = [sys.executable, "-I", "-S", *sys.argv[:2]]
    subprocess.Popen(line, start_new_session=True, close_fds=False)
    os._exit(0)


def _ignore(folder: str) -> None:
    for number in _CATCHABLE:
        signal.signal(number, signal.SIG_IGN)


def _block(folder: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _catch(folder: str) -> None:
    for number in _CATCHABLE:
        signal.signal(number, lambda number, frame: None)


def _again(folder: str) -> None:
    def start_another(number: int, frame: object) -> None:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()

    signal.signal(signal.SIGTERM, start_another)


def _childless(folder: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _idle(folder: str) -> None:
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _rename(folder: str) -> None:
    # What reads /proc/PID/stat up to the first parenthesis takes it for a zombie of the first process.
    _libc().prctl(_PR_SET_NAME, b") Z 1 1 (", 0, 0, 0)


def _terminal(folder: str) -> None:
    import pty

    try:
        parent = pty.fork()[0]
    except OSError:
        # The sandbox has none; it still is a process more.
        parent = os.fork()
    if parent:
        _wait()


def _stop(folder: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _headless(folder: str) -> None:
    """End the first thread and stay in another."""
    import _thread

    _thread.start_new_thread(_wait, ())
    _libc().syscall(_EXIT[os.uname().machine], 0)


def _fifo(folder: str) -> None:
    os.mkfifo(f"{folder}/fifo")
    os.open(f"{folder}/fifo", os.O_RDONLY)


def _traced(folder: str) -> None:
    if os.fork():
        _wait()
    _libc().ptrace(_PTRACE_TRACEME, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGUSR1)


def _hop(folder: str) -> None:
    """Be another process in another session every 20 ms."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.02)


def _crowd(folder: str) -> None:
    for _ in range(6):
        os.fork()
    if os.getpgrp() != os.getpid():
        os.setsid()


def _zombies(folder: str) -> None:
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)


def _removed(folder: str) -> None:
    """Become another program, which does not exist any more."""
    import shutil

    copy = f"{folder}/removed"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", copy)
    descriptor = os.open(copy, os.O_PATH)
    os.unlink(copy)
    os.execv(f"/proc/self/fd/{descriptor}", ["sleep", "3000"])


_FIRST: dict[str, Callable[[str], None]] = {
    "fork": _fork, "daemon": _daemon, "sibling": _sibling, "suspended": _suspended, "adopter": _adopter,
    "spawn": _spawn, "vfork": _vfork, "ignore": _ignore, "block": _block, "catch": _catch, "again": _again,
    "childless": _childless, "idle": _idle, "rename": _rename, "terminal": _terminal, "zombies": _zombies,
}  # fmt: skip
_LAST: dict[str, Callable[[str], None]] = {
    "stop": _stop, "headless": _headless, "fifo": _fifo, "traced": _traced, "hop": _hop, "crowd": _crowd,
    "removed": _removed,
}  # fmt: skip


if __name__ == "__main__":
    stay(sys.argv[1], sys.argv[2:])
