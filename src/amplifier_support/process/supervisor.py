"""Starts commands and cleans up everything they start; the `main` of a separate program.

`process.ProcessRunner` starts it with one end of a Unix socket. Each message on that is one byte
with three descriptors: a control socket, the command's output, and its working folder. A command
with an input of its own comes with two more, its stdin and its standard error, then perhaps one that
it inherits as number INHERITED, and one that is restricted with the Landlock rule set. For each the
supervisor forks a monitor, which talks over the control socket:

    runner -> monitor    the command (see `read_command`); closing the sending side means: kill
    monitor -> runner    "ready", then "failed <errno>", "unconfined <errno>" or "exit <code> <pids still running>",
                         then, if it was ordered to kill, "gone <pids that could not be killed>",
                         else, when nothing is left, "idle"

An idle monitor takes another command: one byte with the descriptors but the first, then as
above. It waits a moment for that, and ends. A monitor stays with a command until nothing
that it started is left. On Linux it is the subreaper of all of it, so that what forks twice or
makes a session of its own is still found among its children. Elsewhere a process that left both
its parent and its group escapes. Because an end of the connection means kill, nothing outlives
the runner's process either, however that ended.

It is a separate program because forking is only safe and cheap in a small process without threads,
and because a subreaper adopts unrelated processes, which an application should not.
"""

from __future__ import annotations

# This starts once per burst of commands: `socket` and `signal` would cost as much as everything
# else together.
import _socket
import _thread
import errno
import gc
import os
import select
import sys
import time

from amplifier_support.process import INHERITED
from amplifier_support.process_tree import adopter, descendants, kill_all, reap
from amplifier_support.sandbox import forwarder
from amplifier_support.sandbox.connections import Connections
from amplifier_support.sandbox.entering import enter, unpack
from amplifier_support.sandbox.system_calls import forbid_inspection, permit_own_mounts, restrict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

IDLE_SECONDS = 1.0
"""Seconds that a monitor waits for a command before it ends."""

_FIRST_SECONDS = 60.0
"""The same for the first command of a supervisor, whose runner may be delayed."""

_INT = 4


# -- starting a command ------------------------------------------------------------------


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
    opened = os.open(os.readlink(f"/proc/self/fd/{folder}"), os.O_RDONLY | os.O_DIRECTORY)
    if not os.path.samestat(os.fstat(opened), os.fstat(folder)):
        os.close(opened)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    os.close(folder)
    return opened


def _start_confined(
    argv: list[bytes],
    environment: dict[bytes, bytes],
    folder: int,
    streams: tuple[int, ...],
    restrictions: tuple[int, bytes, Places],
) -> tuple[int, str, Connections | None]:
    """`start` for a command under restrictions, which it inherits from the thread that starts it.

    They apply to that thread and what it starts; a fork would cost three times as much. Until it
    has ended, the command may see it as its equal; `main` keeps its memory from being
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


# -- one command -------------------------------------------------------------------------


class Monitor:
    """Runs one command after another, each until its end is reported and no process is left."""

    def __init__(
        self, control: _socket.socket, wakeup: int, adopting: bool, is_inside: bool
    ) -> None:
        self._control = control
        self._wakeup = wakeup
        self._adopting = adopting
        self._is_inside = is_inside
        self._command = 0
        self._connections: Connections | None = None
        self._ended = False
        self._report = ""

    def run(self, *descriptors: int) -> None:
        """Everything from reading the first command to the last word."""
        while self._run_one(*descriptors):
            # Together with the last report, so that a command that follows at once finds it idle.
            self._say(self._report + "idle")
            if not select.select([self._control], [], [], IDLE_SECONDS)[0]:
                return
            received = _receive_descriptors(self._control, 6)
            if received is None:
                return
            descriptors = (*received,)

    def _run_one(self, output: int, folder: int, *own: int) -> bool:
        """Run a command; False if it had to be killed, after which the monitor ends."""
        self._say("ready")
        argv, environment, filter, places = read_command(self._control)
        self._ended, self._report = False, ""
        try:
            if self._is_inside:
                folder = inside(folder)
            if filter:
                *streams, rules = own
                if self._is_inside:
                    permit_own_mounts(rules)
                self._command, problem, self._connections = _start_confined(
                    argv, environment, folder, (output, *streams), (rules, filter, places)
                )
            elif self._is_inside:
                problem = f"unconfined {errno.EPERM}"
            else:
                self._command, problem = start(argv, environment, folder, (output, *own))
        except OSError as error:
            problem = f"failed {error.errno or errno.EINVAL}"
        for descriptor in (output, folder, *own):
            os.close(descriptor)
        if problem:
            self._report = problem + "\n"
            return True
        try:
            return self._attend()
        finally:
            self._close_connections()

    def _attend(self) -> bool:
        """Stay until nothing of the command is left; False if it had to be killed."""
        while not self._reap_and_report():
            if self._report:
                self._say(self._report.rstrip())
                self._report = ""
            asking = [] if self._connections is None else [self._connections]
            watched = [self._control, self._wakeup, *asking]
            readable = select.select(watched, [], [], self._patience())[0]
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if self._connections in readable and not self._connections.answer():
                self._close_connections()
            if self._control in readable and self._hung_up():
                self._end()
                return False
        return True

    def _close_connections(self) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    def _hung_up(self) -> bool:
        try:
            return not self._control.recv(4096)
        except ConnectionError:
            return True  # The runner's process ended before it had heard everything.

    def _end(self) -> None:
        """Kill everything, and stay for as long as something resists."""
        left = kill_all(self._running, self._over)
        self._say("gone " + ",".join(map(str, left)))
        self._control.close()
        while left:
            time.sleep(1.0)
            left = kill_all(self._running, self._over)

    def _reap_and_report(self) -> bool:
        """Reap, report the command's end when it comes; True when nothing is left."""
        ended, any_left = reap()
        if self._command in ended:
            self._ended = True
            code = os.waitstatus_to_exitcode(ended[self._command])
            left = self._running() if any_left or not self._adopting else []
            self._report = f"exit {code} " + ",".join(map(str, left)) + "\n"
        return self._ended and (not any_left if self._adopting else not self._running())

    def _over(self) -> bool:
        """Reap; True when nothing is left, which only adoption makes certain."""
        any_left = reap()[1]
        return not any_left if self._adopting else not self._running()

    def _running(self) -> list[int]:
        return descendants(os.getpid(), group=0 if self._adopting else self._command)

    def _patience(self) -> float | None:
        # Where orphans are not adopted, nothing reports when the last one ends.
        return 1.0 if self._ended and not self._adopting else None

    def _say(self, line: str) -> None:
        try:
            self._control.sendall(line.encode() + b"\n")
        except OSError:
            pass  # The runner is gone; its end of the connection is the order to kill.


def read_command(
    control: _socket.socket,
) -> tuple[list[bytes], dict[bytes, bytes], bytes, Places]:
    """The command: its arguments and environment, its filter and where its sockets may be.

    It is sent as: length, number of folders, folders, number of hidden paths, these, number of
    arguments, filter, arguments, NAME=VALUE pairs. The length has 4 bytes, and the filter of a
    restricted command is in hexadecimal digits.

    All but the length are separated by NUL.
    """
    length = int.from_bytes(_receive(control, _INT), "big")
    folders, fields = _counted(_receive(control, length).split(b"\0"))
    hidden, (count, filter, *fields) = _counted(fields)
    split = int(count)
    pairs = (field.partition(b"=") for field in fields[split:])
    environment = {name: value for name, _, value in pairs}
    return fields[:split], environment, bytes.fromhex(filter.decode()), (folders, hidden)


def _counted(fields: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """As many fields as the first one says, and the rest."""
    end = int(fields[0]) + 1
    return fields[1:end], fields[end:]


def _receive_descriptors(connection: _socket.socket, max_count: int) -> list[int] | None:
    """The descriptors that come with the next byte; None at the end of the connection."""
    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    space = _socket.CMSG_SPACE(max_count * _INT)
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


def _receive(control: _socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = control.recv(length - len(data))
        if not piece:
            raise EOFError("the runner left before it sent the command")
        data += piece
    return data


# -- the supervisor ----------------------------------------------------------------------


class Supervisor:
    """Forks monitors, and ends what the monitors leave behind when one is killed itself."""

    def __init__(self, channel: _socket.socket, *, is_inside: bool = False) -> None:
        self._channel = channel
        self._is_inside = is_inside
        self._adopt = adopter()
        self._monitors: set[int] = set()
        self._wakeup = _watch_children()
        self._forwarder = 0

    def forward(self, path: str) -> None:
        """Start a process that passes connections to the port of the proxy on to its socket.

        Raises:
            OSError: The system refused.
        """
        server = forwarder.listen()
        self._forwarder = os.fork()
        if self._forwarder == 0:
            try:
                self._channel.close()
                forwarder.serve(server, path)
            finally:
                os._exit(1)
        server.close()

    def serve(self) -> None:
        """Until the runner closes the channel, or the last monitor has nothing to do."""
        self._adopt()
        # Memory that a fork writes to is copied, and a garbage collection would write to all of it.
        gc.disable()
        gc.freeze()
        if not select.select([self._channel], [], [], _FIRST_SECONDS)[0]:
            return
        while True:
            readable = select.select([self._channel, self._wakeup], [], [])[0]
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
                self._look_after_children()
            if self._channel in readable and not self._take():
                break
            if not self._monitors:
                return
        self._channel.close()
        while self._monitors:
            select.select([self._wakeup], [], [], 1.0)
            self._look_after_children()

    def _take(self) -> bool:
        """Fork a monitor for the next command; False when there will be none."""
        descriptors = _receive_descriptors(self._channel, 7)
        if descriptors is None:
            return False
        try:
            pid = os.fork()
        except OSError as error:
            os.write(descriptors[0], b"ready\nfailed %d\n" % (error.errno or errno.EAGAIN))
        else:
            if pid == 0:
                self._become_monitor(*descriptors)
            self._monitors.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become_monitor(self, control: int, *descriptors: int) -> None:
        code = 1
        try:
            self._channel.close()
            wakeup = _watch_children()
            socket = _socket.socket(fileno=control)
            monitor = Monitor(socket, wakeup, self._adopt(), self._is_inside)
            monitor.run(*descriptors)
            code = 0
        except EOFError:
            code = 0
        finally:
            os._exit(code)

    def _look_after_children(self) -> None:
        self._continue_monitors()
        if self._collect():
            kill_all(self._orphans, self._no_orphans)

    def _collect(self) -> bool:
        """Reap; True when a monitor was killed or failed, and left its processes behind."""
        ended, _ = reap()
        monitors = self._monitors & ended.keys()
        self._monitors -= monitors
        return any(ended[pid] != 0 for pid in monitors)

    def _continue_monitors(self) -> None:
        """A command may have stopped its monitor, which would then not get the order to kill."""
        for pid in self._monitors:
            try:
                if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None:
                    os.kill(pid, signal.SIGCONT)
            except ChildProcessError:
                pass  # It has ended.

    def _no_orphans(self) -> bool:
        self._collect()
        return not self._orphans()

    def _orphans(self) -> list[int]:
        return descendants(os.getpid(), spared=frozenset({*self._monitors, self._forwarder}))


def _watch_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reading


def main() -> None:
    """Serve the socket whose descriptor is the first argument.

    With a fifth argument, `inside`, it makes namespaces for its commands; stdin says how.
    """
    os.chdir("/")
    # `select` takes only numbers below 1024, and a runner with many open files has higher ones.
    descriptor = int(sys.argv[1])
    channel = _socket.socket(fileno=os.dup(descriptor))
    os.close(descriptor)
    is_inside, proxy = sys.argv[5:] == ["inside"], -1
    if is_inside:
        proxy = _enter_namespaces()
    forbid_inspection()
    supervisor = Supervisor(channel, is_inside=is_inside)
    if proxy >= 0:
        # Its path leads nowhere any more.
        supervisor.forward(f"/proc/self/fd/{proxy}")
        os.close(proxy)
    supervisor.serve()


def _enter_namespaces() -> int:
    """Make namespaces as stdin says, and continue in them: a descriptor of the proxy's socket, or -1."""
    with open(0, "rb", closefd=False) as stdin:
        network, path, mounts = unpack(stdin.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    proxy = os.open(path, os.O_PATH) if path else -1
    enter(mounts, network=network)
    return proxy
