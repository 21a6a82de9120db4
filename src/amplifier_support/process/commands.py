"""Run commands so that nothing they start outlives its time.

Each command gets a session and process group of its own. Unless it has streams of its own, its
stdin is the null device and both outputs share one pipe. A command ends when its first process
does; processes it left in the background do not delay that, but they remain known, their output is
still read, and they are killed with the session. `supervisor` describes how, and what happens on
systems other than Linux.

CommandError
├── CommandNotStarted        the program is missing, not executable, or the command too long
└── SupervisorLost           the supervisor of the commands was killed
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import amplifier_support
from amplifier_support.environment import minimal_environment
from amplifier_support.files import on_error
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.sandbox.policy import Confinement
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable

__all__ = [
    "Command",
    "CommandError",
    "CommandNotStarted",
    "Ended",
    "ProcessRunner",
    "SupervisorLost",
]

if sys.platform == "linux":
    import fcntl

_READ_SIZE = 256 * 1024
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031

SETTLE_SECONDS = 0.1
"""Seconds to wait for background processes to end, and for their last output."""

KILL_SECONDS = 8.0
"""Seconds to wait for a kill; the supervisor continues it."""

_LIMITS = {
    errno.EMFILE: "raise the limit on open files (ulimit -n) or run fewer commands at once",
    errno.EAGAIN: "raise the limit on processes (ulimit -u) or run fewer commands at once",
}


class CommandError(Exception):
    """A command could not be run; the message says why."""


class CommandNotStarted(CommandError):
    """The system refused to start it."""


class SupervisorLost(CommandError):
    """The supervisor of the commands was killed, and the command with it."""


class Command(NamedTuple):
    """A program to run.

    Attributes:
        argv: Absolute path of the program, and its arguments.
        environment: All of its environment.
        folder: Descriptor of its working directory; stays the caller's.
        streams: Descriptors of its stdin and its standard error, which stay the caller's. Without
            them stdin is the null device and errors go where the output goes.
        confinement: What restricts it; set by the runner.
        inherited: A further descriptor, which it gets as number INHERITED; stays the caller's.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: int
    streams: tuple[int, int] | None = None
    confinement: Confinement | None = None
    inherited: int | None = None


class Job:
    """One command on the runner's side: its two descriptors and what arrives on them.

    Args:
        command: What to run.
        output: Called with what it writes.
        monitor: The idle monitor that is to run it; a new one, if None.
        forget: Called when nothing of it is left.
        idle: Called with the monitor's socket when that could take another command.

    Raises:
        CommandNotStarted: It cannot be sent, or a limit of the system is reached.

    Attributes:
        ready: True once the monitor has taken the command over, False if no monitor has.
        exited: Exit code and pids left in the background.
        gone: Pids that could not be killed; done when the monitor has ended.
    """

    def __init__(
        self,
        command: Command,
        output: Callable[[bytes], None],
        *,
        monitor: socket.socket | None,
        forget: Callable[[Job], None],
        idle: Callable[[socket.socket], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        rules = () if command.confinement is None else (command.confinement.rules,)
        inherited = () if command.inherited is None else (command.inherited,)
        self._given = (command.folder, *(command.streams or ()), *inherited, *rules)
        self._output = output
        self._forget = forget
        self._idle = idle
        self._unsent = _packed(command)
        self._heard = b""
        self._killed = False
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self.exited: asyncio.Future[tuple[int, tuple[int, ...]]] = self._loop.create_future()
        self.gone: asyncio.Future[tuple[int, ...]] = self._loop.create_future()
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._their_control: socket.socket | None = None
        try:
            if monitor is None:
                monitor, self._their_control = socket.socketpair()
            self._pipe, self._their_pipe = os.pipe()
        except OSError as error:
            for end in filter(None, (monitor, self._their_control)):
                end.close()
            raise _not_started(error.errno or errno.EINVAL) from error
        self._control: socket.socket | None = monitor

    def hand_over(self, channel: socket.socket | None) -> bool:
        """Send the command and listen for the replies; False if no monitor can take it.

        Args:
            channel: The supervisor, which has to start a monitor; None if there is one.
        """
        assert self._control is not None
        descriptors = [self._their_pipe, *self._given]
        if self._their_control is not None:
            descriptors.insert(0, self._their_control.fileno())
        try:
            socket.send_fds(channel or self._control, [b"\0"], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return False
        self._close_theirs()
        self._control.setblocking(False)
        os.set_blocking(self._pipe, False)
        _widen(self._pipe)
        self._loop.add_reader(self._control.fileno(), self._on_control)
        self._loop.add_reader(self._pipe, self._on_output)
        self._send()
        return True

    async def settle(self, seconds: float) -> None:
        """Read the rest of the output: until its end or a time limit."""
        await asyncio.wait([self._silent], timeout=seconds)
        left = _PIPE_SIZE
        while left > 0 and not self._silent.done():
            taken = self._on_output()
            left = left - taken if taken else 0

    async def kill(self) -> tuple[int, ...]:
        """Kill everything the command started; returns what could not be killed."""
        self._killed = True
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
        done, _ = await asyncio.wait([self.gone], timeout=KILL_SECONDS)
        if not done:
            return ()
        await self.settle(SETTLE_SECONDS)
        return self.gone.result()

    def release(self) -> None:
        """Close everything, even if a process still writes, and drop this job."""
        self._close_theirs()
        self._close_control()
        self._close_pipe()
        self._forget(self)

    def _close_theirs(self) -> None:
        if self._their_control is not None:
            self._their_control.close()
        if self._their_pipe >= 0:
            os.close(self._their_pipe)
            self._their_pipe = -1

    def _let_go(self) -> socket.socket | None:
        """Detach and return the control socket."""
        control, self._control = self._control, None
        if control is not None:
            self._loop.remove_reader(control.fileno())
            self._loop.remove_writer(control.fileno())
        return control

    def _close_control(self) -> None:
        control = self._let_go()
        if control is not None:
            control.close()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
        if not self._silent.done():
            self._silent.set_result(None)

    def _send(self) -> None:
        """Send the command, as much of it as the socket takes at a time."""
        control = self._control
        assert control is not None
        try:
            sent = control.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The monitor is gone; the end of the socket is handled elsewhere.
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(control.fileno(), self._send)
        else:
            self._loop.remove_writer(control.fileno())

    def _on_output(self) -> int:
        """Pass on the available output; returns its number of bytes, 0 if there is none at present."""
        try:
            data = os.read(self._pipe, _READ_SIZE)
        except BlockingIOError:
            return 0
        if data:
            self._output(data)
        else:
            self._close_pipe()
        return len(data)

    def _on_control(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            self._on_word(word, rest)
        if not data:
            self._close_control()
            self._end()

    def _on_word(self, word: str, rest: str) -> None:
        match word:
            case "ready":
                self.ready.set_result(True)
            case "exit":
                code, _, pids = rest.partition(" ")
                self.exited.set_result((int(code), _pids(pids)))
            case "gone":
                self.gone.set_result(_pids(rest))
            case "failed":
                self.exited.set_exception(_not_started(int(rest)))
            case "unconfined":
                reason = describe_error(int(rest))
                problem = CommandNotStarted(f"the system refused to start the sandbox: {reason}")
                self.exited.set_exception(problem)
            case "idle":
                if not self._killed and (control := self._let_go()) is not None:
                    self._end()
                    self._idle(control)
            case _:
                raise AssertionError(f"the monitor said {word!r}")

    def _end(self) -> None:
        """Called when no process of the command is left, or the monitor was killed."""
        self._forget(self)
        if not self.ready.done():
            self.ready.set_result(False)
        if not self.exited.done():
            self.exited.set_exception(SupervisorLost("the supervisor of the command was killed"))
            # After a time limit or a cancellation nothing waits for it.
            self.exited.exception()
        if not self.gone.done():
            self.gone.set_result(())


def _packed(command: Command) -> bytes:
    """The command as `supervisor.read_command` reads it.

    Raises:
        CommandNotStarted: It has characters that the locale cannot encode.
    """
    pairs = (f"{name}={value}" for name, value in command.environment.items())
    confinement = command.confinement
    filter = "" if confinement is None else confinement.filter.hex()
    sockets = () if confinement is None else confinement.sockets or ()
    hidden = () if confinement is None else confinement.hidden
    places = [str(len(sockets)), *sockets, str(len(hidden)), *hidden]
    fields = [*places, str(len(command.argv)), filter, *command.argv, *pairs]
    try:
        data = b"\0".join(map(os.fsencode, fields))
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise CommandNotStarted(
            f"the encoding of the locale, {error.encoding}, does not have the character {character!a} "
            "of the command"
        ) from error
    return len(data).to_bytes(4, "big") + data


def _pids(listed: str) -> tuple[int, ...]:
    return tuple(int(pid) for pid in listed.split(",") if pid)


def _not_started(number: int) -> CommandNotStarted:
    if number == errno.E2BIG:
        return CommandNotStarted("the command is too long for the system to start it")
    return CommandNotStarted(f"the system did not start the command: {describe_error(number)}")


def describe_error(number: int) -> str:
    """The text of an error number of the system, with what to do about a limit."""
    advice = _LIMITS.get(number)
    return os.strerror(number) + (f"; {advice}" if advice else "")


def _widen(pipe: int) -> None:
    """Enlarge the pipe, so that a lot of output takes fewer iterations of the event loop."""
    if sys.platform != "linux":
        return
    # An unprivileged user may have used up the limit of pipe memory.
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_SIZE)


_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PACKAGES = str(Path(amplifier_support.__file__).parents[1])
# A module is compiled only once; the folders come last, so that they hide no standard module.
_START = """\
import sys
sys.path += sys.argv[2:4]
__import__(sys.argv[4]).main()
"""

_LAST_SECONDS = 5.0
"""Seconds to wait for the last output where nothing is left; it is there already."""

_MAX_REASON = 4096


class Ended(NamedTuple):
    """The end of a command.

    Attributes:
        exit_code: 0 to 255, negative for the signal that killed it; None after a time limit.
        timed_out: It reached its limit and was killed with everything it had started.
        background: Pids of what it left running.
        unkillable: Pids of what could not be killed, such as processes of another user.
        seconds: Wall time it took.
    """

    exit_code: int | None
    timed_out: bool
    background: tuple[int, ...]
    unkillable: tuple[int, ...]
    seconds: float


class ProcessRunner:
    """Runs the commands of one session, on one event loop.

    `close` it: until then what commands left in the background runs on.

    Args:
        sandbox: Restricts every command; None for the programs that are not the agent's.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox
        self._policy = None if sandbox is None else sandbox.policy
        self._visible: frozenset[str] = frozenset()
        self._supervisors: list[subprocess.Popen[bytes]] = []
        self._channel: socket.socket | None = None
        self._idle: list[socket.socket] = []
        self._jobs: set[Job] = set()

    async def run(
        self, command: Command, *, timeout: float | None, output: Callable[[bytes], None]
    ) -> Ended:
        """Run a command to its end.

        Args:
            command: What to run.
            timeout: Seconds until it is killed; None for no limit.
            output: Called with what it writes, in order; also after the end, for as long as
                something in the background writes.

        Raises:
            CommandNotStarted: The system refused to start it.
            SupervisorLost: The supervisor was killed.
            asyncio.CancelledError: After everything the command had started was killed.
        """
        started = time.monotonic()
        job = await self._start(await self._confine(command), output)
        try:
            async with asyncio.timeout(timeout):
                code, background = await asyncio.shield(job.exited)
            if background:
                # Processes that are about to end are not worth reporting.
                await asyncio.wait([job.gone], timeout=SETTLE_SECONDS)
                background = () if job.gone.done() else background
            await job.settle(0 if background else _LAST_SECONDS)
        except TimeoutError:
            unkillable = await _to_the_end(job)
            return Ended(None, True, (), unkillable, time.monotonic() - started)
        except asyncio.CancelledError:
            await _to_the_end(job)
            raise
        finally:
            self._tidy()
        return Ended(code, False, background, (), time.monotonic() - started)

    @property
    def background(self) -> int:
        """Number of commands of which something is still running."""
        return len(self._jobs)

    async def close(self) -> None:
        """Kill everything that still runs, and the supervisor."""
        jobs = list(self._jobs)
        await asyncio.gather(*(job.kill() for job in jobs))
        for job in jobs:
            job.release()
        self._tidy()
        self._hang_up()
        for supervisor in self._supervisors:
            # It has nothing left to look after, so this takes a moment.
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(supervisor.wait, KILL_SECONDS)
        self._supervisors.clear()

    def _tidy(self) -> None:
        if self._sandbox is not None:
            self._sandbox.tidy()

    async def _confine(self, command: Command) -> Command:
        if self._sandbox is None:
            return command
        try:
            await self._sandbox.open_network()
            argv, environment, confinement, needed = self._sandbox.confine(
                command.argv, command.environment
            )
        except (SandboxUnavailable, OSError) as error:
            raise _refused("the sandbox", error) from error
        policy, before = self._sandbox.policy, self._policy
        if policy != before or (confinement is not None and not needed <= self._visible):
            # Other namespaces are needed; commands in those that exist go on.
            self._policy = policy
            self._visible |= needed
            self._hang_up()
        return command._replace(argv=argv, environment=environment, confinement=confinement)

    async def _start(self, command: Command, output: Callable[[bytes], None]) -> Job:
        # An idle monitor, or the supervisor, may end just when it is handed a command; it then
        # never starts it.
        for hand_over in (self._to_monitor, self._to_supervisor):
            job = await self._ready(hand_over(command, output))
            if job is not None:
                return job
        supervisor = self._launch()
        assert supervisor.stderr is not None
        with supervisor.stderr as stderr:
            job = await self._ready(self._to_supervisor(command, output))
            if job is not None:
                return job
            reason = await _why_ended(supervisor, stderr.fileno())
        raise SupervisorLost(f"the command supervisor does not start: {reason}")

    async def _ready(self, job: Job | None) -> Job | None:
        """The job, once a monitor has taken it; None if none does."""
        if job is None:
            return None
        self._jobs.add(job)
        try:
            if await asyncio.shield(job.ready):
                return job
        except asyncio.CancelledError:
            await _to_the_end(job)
            raise
        job.release()
        return None

    def _to_monitor(self, command: Command, output: Callable[[bytes], None]) -> Job | None:
        """Hand it to an idle monitor, if there is one."""
        while self._idle:
            monitor = self._idle.pop()
            asyncio.get_running_loop().remove_reader(monitor.fileno())
            job = self._hand_over(command, output, monitor=monitor)
            if job is not None:
                return job
        return None

    def _to_supervisor(self, command: Command, output: Callable[[bytes], None]) -> Job | None:
        """Have the supervisor start a monitor for it, if there is one."""
        channel = self._channel
        return None if channel is None else self._hand_over(command, output, channel=channel)

    def _hand_over(
        self,
        command: Command,
        output: Callable[[bytes], None],
        *,
        monitor: socket.socket | None = None,
        channel: socket.socket | None = None,
    ) -> Job | None:
        try:
            job = Job(command, output, monitor=monitor, forget=self._jobs.discard, idle=self._rest)
        except CommandNotStarted:
            if monitor is not None:
                monitor.close()
            raise
        with on_error(job.release):
            taken = job.hand_over(channel)
        if not taken:
            job.release()
        return job if taken else None

    def _rest(self, monitor: socket.socket) -> None:
        """Keep a monitor that has nothing to do, until it ends or is needed."""
        if self._channel is None:
            # Its supervisor is gone; nothing would clean up the processes it leaves behind.
            monitor.close()
            return
        self._idle.append(monitor)
        asyncio.get_running_loop().add_reader(monitor.fileno(), self._dismiss, monitor)

    def _dismiss(self, monitor: socket.socket) -> None:
        # An idle monitor sends nothing: its socket becomes readable when it ends.
        asyncio.get_running_loop().remove_reader(monitor.fileno())
        monitor.close()
        self._idle.remove(monitor)

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start a supervisor."""
        self._hang_up()
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _refused("the command supervisor", error) from error
        with theirs, contextlib.ExitStack() as stack:
            try:
                view = self._sandbox.view(self._visible) if self._sandbox else None
                stdin = None if view is None else stack.enter_context(_readable(view))
                supervisor = subprocess.Popen(
                    [*_supervisor_command(theirs.fileno()), *([] if view is None else ["inside"])],
                    stdin=stdin or subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=minimal_environment(),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise _refused("the command supervisor", error) from error
        self._supervisors.append(supervisor)
        self._channel = ours
        # Nothing is sent on it: it becomes readable when the supervisor ends.
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hang_up)
        return supervisor

    def _hang_up(self) -> None:
        for monitor in list(self._idle):
            self._dismiss(monitor)
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
            self._reap()

    def _reap(self) -> None:
        """Collect supervisors that have ended, or are about to."""
        self._supervisors = [each for each in self._supervisors if each.poll() is None]
        if len(self._supervisors) > (self._channel is not None):
            asyncio.get_running_loop().call_later(0.05, self._reap)


def _readable(data: bytes) -> BinaryIO:
    """A file in memory, to be read from its beginning."""
    file = open(os.memfd_create("view"), "w+b")  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _refused(what: str, error: OSError | SandboxUnavailable) -> CommandNotStarted:
    reason = str(error)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.EAGAIN):
        reason = describe_error(error.errno)
    return CommandNotStarted(f"cannot start {what}: {reason}")


def _supervisor_command(channel: int) -> list[str]:
    options = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
    folders = (str(_SUPERVISOR.parent), _PACKAGES)
    return [sys.executable, *options, "-c", _START, str(channel), *folders, _SUPERVISOR.stem]


async def _why_ended(supervisor: subprocess.Popen[bytes], stderr: int) -> str:
    """Why a supervisor ended when it was just started: its last words, else its exit status."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(supervisor.wait, KILL_SECONDS)
    os.set_blocking(stderr, False)
    last_words = b""
    with contextlib.suppress(BlockingIOError):
        last_words = os.read(stderr, _MAX_REASON)
    lines = last_words.decode("utf-8", "replace").strip().splitlines()
    if lines:
        return lines[-1]
    code = supervisor.returncode
    if code is None:
        return "it does not answer"
    return f"exit code {code}" if code >= 0 else f"it was killed by signal {-code}"


async def _to_the_end(job: Job) -> tuple[int, ...]:
    """Kill a job, which has its own time limit, although the caller may be cancelled again."""
    task = asyncio.ensure_future(job.kill())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    job.release()
    return task.result()
