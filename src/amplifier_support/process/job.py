"""One command as its caller sees it: what to run, its output and its state.

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
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from amplifier_support.sandbox.confinement import Confinement

if sys.platform == "linux":
    import fcntl

_READ_SIZE = 256 * 1024
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031

SETTLE_SECONDS = 0.1
"""How long to wait for background processes to end, and for their last output, in seconds."""

KILL_SECONDS = 8.0
"""How long to wait for a kill, in seconds; the supervisor continues it."""

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
                self.exited.set_exception(_not_confined(int(rest)))
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


def _not_confined(number: int) -> CommandNotStarted:
    return CommandNotStarted(f"the system refused to start the sandbox: {describe_error(number)}")


def _widen(pipe: int) -> None:
    """Enlarge the pipe, so that a lot of output takes fewer iterations of the event loop."""
    if sys.platform != "linux":
        return
    # An unprivileged user may have used up the limit of pipe memory.
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_SIZE)
