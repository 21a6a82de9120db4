"""Starts one command for its monitor, with or without restrictions; a part of the supervisor's program."""

from __future__ import annotations

# As in `supervisor`: `socket` and `signal` would cost as much as all else.
import _socket
import errno
import os
import sys

from amplifier_support.process import INHERITED
from amplifier_support.sandbox.connections import Connections
from amplifier_support.sandbox.system_calls import restrict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

_SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_INT = 4

Places = tuple[list[bytes], list[bytes]]
"""Folders with the sockets that a command may connect to, and what is hidden below these."""


def start(
    argv: list[bytes], environment: dict[bytes, bytes], folder: int, streams: tuple[int, ...]
) -> tuple[int, str]:
    """Start the command in a session of its own: its pid, and what to report if it did not start.

    `streams` are its output; if it has these of its own, its stdin and standard error; and perhaps one
    that it inherits.
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
    """A folder in the mounts of this process, for a descriptor from outside, which is closed.

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
    """`start` for a command that restricts itself before it becomes the program.

    `restrictions` are the Landlock rule set, the seccomp filter, and where the sockets are that it
    may connect to; if there are any, the filter asks.
    """
    ours, theirs = _socket.socketpair()
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, environment, folder, streams, restrictions, theirs)
    except OSError as error:
        ours.close()
        return 0, f"failed {error.errno or errno.EAGAIN}", None
    finally:
        theirs.close()
    connections, problem = None, ""
    try:
        # Closed by the start of the program.
        while data := ours.recv(64, _socket.MSG_PEEK):
            if data.startswith(b"\0"):
                for listener in receive_descriptors(ours, 1) or ():
                    connections = Connections(listener, *restrictions[2])
            else:
                problem += ours.recv(64).decode()
    finally:
        ours.close()
    if problem:
        os.waitpid(pid, 0)
        if connections is not None:
            connections.close()
        return 0, problem, None
    return pid, "", connections


def _become(
    argv: list[bytes],
    environment: dict[bytes, bytes],
    folder: int,
    streams: tuple[int, ...],
    restrictions: tuple[int, bytes, Places],
    report: _socket.socket,
) -> None:
    """In the forked process: what `posix_spawn` does, and the restrictions; never returns."""
    step = "failed"
    try:
        output, *own = streams
        inherited = own.pop() if len(own) % 2 else None
        os.setsid()
        os.fchdir(folder)
        os.dup2(own[0] if own else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(own[1] if own else output, 2)
        if inherited is not None:
            os.dup2(inherited, INHERITED)
        for number in _SETTABLE:
            # What has a handler loses it with the start of the program.
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = "unconfined"
        rules, filter, (folders, _) = restrictions
        listener = restrict(rules, filter, asks=bool(folders))
        if listener >= 0:
            descriptor = listener.to_bytes(_INT, sys.byteorder)
            report.sendmsg([b"\0"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor)])
            os.close(listener)
        step = "failed"
        os.execve(argv[0], argv, environment)
    except OSError as error:
        report.send(f"{step} {error.errno or errno.EINVAL}".encode())
    finally:
        os._exit(127)


def receive_descriptors(connection: _socket.socket, most: int) -> list[int] | None:
    """The descriptors that come with the next byte; None at the end of the connection."""
    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    space = _socket.CMSG_SPACE(most * _INT)
    try:
        data, ancillary, _, _ = connection.recvmsg(1, space, flags)
    except ConnectionError:
        return None
    if not data:
        return None
    packed = b"".join(content for _, _, content in ancillary)
    descriptors = [
        int.from_bytes(packed[at : at + _INT], sys.byteorder) for at in range(0, len(packed), _INT)
    ]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return descriptors
