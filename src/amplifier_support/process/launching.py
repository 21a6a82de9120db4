"""Starts one command for its monitor, with or without restrictions; a part of the supervisor's program."""

from __future__ import annotations

# As in `supervisor`: `socket` and `signal` would cost as much as everything else together.
import _thread
import errno
import os

from amplifier_support.process import INHERITED
from amplifier_support.sandbox.connections import Connections
from amplifier_support.sandbox.system_calls import restrict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}

Places = tuple[list[bytes], list[bytes]]
"""Folders with the sockets that a command may connect to, and what is hidden below these."""


def start(
    argv: list[bytes], environment: dict[bytes, bytes], folder: int, streams: tuple[int, ...]
) -> tuple[int, str]:
    """Start the command in a session of its own: its pid, and what to report if it did not start.

    `streams` are its output, then its own stdin and standard error if it has them, then a
    descriptor that it inherits if there is one.
    """
    output, *own = streams
    inherited = [(os.POSIX_SPAWN_DUP2, own.pop(), INHERITED)] if len(own) % 2 else []
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    try:
        os.fchdir(folder)
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, own[0], 0) if own else nothing,
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, own[1] if own else output, 2),
                *inherited,
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_SETTABLE,
        )
    except OSError as error:
        return 0, f"failed {error.errno or errno.EINVAL}"
    finally:
        os.chdir("/")
    return pid, ""


def inside(folder: int) -> int:
    """Open the folder of a descriptor from outside in the mounts of this process; closes the descriptor.

    From a folder of the mounts outside, `..` leads to everything there.

    Raises:
        OSError: It is not there, or is another folder.
    """
    found = os.open(os.readlink(f"/proc/self/fd/{folder}"), os.O_RDONLY | os.O_DIRECTORY)
    if not os.path.samestat(os.fstat(found), os.fstat(folder)):
        os.close(found)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    os.close(folder)
    return found


def start_confined(
    argv: list[bytes],
    environment: dict[bytes, bytes],
    folder: int,
    streams: tuple[int, ...],
    restrictions: tuple[int, bytes, Places],
) -> tuple[int, str, Connections | None]:
    """`start` for a command under restrictions, which it inherits from the thread that starts it.

    They apply to that thread and what it starts; a fork would cost three times as much. Until it
    has ended, the command may see it as its equal; `supervisor.main` keeps its memory from being
    read.

    `restrictions` are the Landlock rule set, the seccomp filter, and where the sockets are that it
    may connect to; if there are any, the filter asks.
    """
    rules, filter, (folders, hidden) = restrictions
    listener, pid, problem = -1, 0, f"unconfined {errno.EINVAL}"
    ended = _thread.allocate_lock()

    def run() -> None:
        nonlocal listener, pid, problem
        try:
            listener = restrict(rules, filter, asks=bool(folders))
            pid, problem = start(argv, environment, folder, streams)
        except OSError as error:
            problem = f"unconfined {error.errno or errno.EINVAL}"
        finally:
            ended.release()

    ended.acquire()
    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return 0, f"failed {errno.EAGAIN}", None
    ended.acquire()
    if listener >= 0 and problem:
        os.close(listener)
    elif listener >= 0:
        return pid, problem, Connections(listener, folders, hidden)
    return pid, problem, None
