"""Runs commands so that nothing they start outlives its time.

    CommandError
    ├── CommandNotStarted        the program is missing, not executable, or the command too long
    └── SupervisorLost           what watches over the commands was killed

Each command gets a session and process group of its own, stdin from the null device and one pipe
for both outputs. A command ends when its first process does; what it left running in the
background neither delays that nor escapes: it is known, its output is still taken, and it is
killed with the session. `process_supervisor` says how, and what other systems than Linux get.
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
from typing import NamedTuple

_SUPERVISOR = Path(__file__).with_name("process_supervisor.py")
_READ_SIZE = 256 * 1024
_PIPE_SIZE = 1024 * 1024
_F_SETPIPE_SZ = 1031
# What the interpreter itself may need to start.
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL")

SETTLE_SECONDS = 0.1
"""How long is waited for the end, and the last output, of what is left in the background."""

_LAST_SECONDS = 5.0
"""The same for the output where nothing is left: a limit only for what nobody can know."""

KILL_SECONDS = 8.0
"""When a kill that was ordered is no longer waited for; the supervisor goes on with it."""


class CommandError(Exception):
    """A command could not be run; the message says why."""


class CommandNotStarted(CommandError):
    """The system refused to start it."""


class SupervisorLost(CommandError):
    """What watches over the commands was killed, and the command with it."""


class Command(NamedTuple):
    """A program to run.

    Attributes:
        argv: Absolute path of the program, and its arguments.
        environment: All of its environment.
        folder: Descriptor of its working directory; stays the caller's.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: int


class Ended(NamedTuple):
    """How a command ended.

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
    """

    def __init__(self) -> None:
        self._supervisors: list[subprocess.Popen[bytes]] = []
        self._channel: socket.socket | None = None
        self._jobs: set[_Job] = set()

    async def run(
        self, command: Command, *, timeout: float, output: Callable[[bytes], None]
    ) -> Ended:
        """Run a command to its end.

        Args:
            command: What to run.
            timeout: Seconds until it is killed.
            output: Called with what it writes, in order; also after the end, for as long as
                something in the background writes.

        Raises:
            CommandNotStarted: The system refused to start it.
            SupervisorLost: The supervisor was killed.
            asyncio.CancelledError: After everything the command had started was killed.
        """
        started = time.monotonic()
        job = await self._start(command, output)
        try:
            async with asyncio.timeout(timeout):
                code, background = await asyncio.shield(job.exited)
            if background:
                # What is only on its way out is not worth telling.
                await asyncio.wait([job.gone], timeout=SETTLE_SECONDS)
                background = () if job.gone.done() else background
            await job.settle(0 if background else _LAST_SECONDS)
        except TimeoutError:
            unkillable = await _to_the_end(job)
            return Ended(None, True, (), unkillable, time.monotonic() - started)
        except asyncio.CancelledError:
            await _to_the_end(job)
            raise
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
        self._hang_up()
        for supervisor in self._supervisors:
            # It has nothing left to look after, so this takes a moment.
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(supervisor.wait, KILL_SECONDS)
        self._supervisors.clear()

    async def _start(self, command: Command, output: Callable[[bytes], None]) -> _Job:
        for last in (False, True):
            job = _Job(command, output, self._jobs.discard)
            try:
                self._hand_over(job, command.folder, anew=last)
            except BaseException:
                job.release()
                raise
            self._jobs.add(job)
            try:
                if await asyncio.shield(job.ready):
                    return job
            except asyncio.CancelledError:
                await _to_the_end(job)
                raise
            # The supervisor ended, for want of commands, just when this one was handed over.
            job.release()
        raise SupervisorLost("the supervisor of commands ends as soon as it is started")

    def _hand_over(self, job: _Job, folder: int, *, anew: bool) -> None:
        """Send a job to the supervisor, which is started where there is none."""
        if anew or self._channel is None or not _sent(self._channel, job, folder):
            self._hang_up()
            channel = self._launch()
            if not _sent(channel, job, folder):
                raise SupervisorLost("the supervisor of commands cannot be reached")
        job.listen()

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with theirs:
            try:
                supervisor = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SUPERVISOR), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise CommandNotStarted(f"no supervisor for commands: {error}") from error
        self._supervisors.append(supervisor)
        self._channel = ours
        # Nothing is ever said on it: it becomes readable when the supervisor ends.
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hang_up)
        return ours

    def _hang_up(self) -> None:
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


def _sent(channel: socket.socket, job: _Job, folder: int) -> bool:
    try:
        socket.send_fds(channel, [b"\0"], [*job.theirs, folder])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


class _Job:
    """One command on the runner's side: its two descriptors and what is heard on them.

    Attributes:
        ready: True once the monitor has taken the command over, False if nobody has.
        exited: Exit code and pids left in the background.
        gone: Pids that could not be killed; done when the monitor has ended.
    """

    def __init__(
        self, command: Command, output: Callable[[bytes], None], forget: Callable[[_Job], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._forget = forget
        self._unsent = _packed(command)
        self._heard = b""
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self.exited: asyncio.Future[tuple[int, tuple[int, ...]]] = self._loop.create_future()
        self.gone: asyncio.Future[tuple[int, ...]] = self._loop.create_future()
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._control, self._their_control = socket.socketpair()
        self._pipe, self._their_pipe = os.pipe()

    @property
    def theirs(self) -> tuple[int, int]:
        """Descriptors for the monitor: its end of the control socket, and of the output."""
        return self._their_control.fileno(), self._their_pipe

    def listen(self) -> None:
        """The monitor has its ends now: send the command and hear what comes back."""
        self._close_theirs()
        self._control.setblocking(False)
        os.set_blocking(self._pipe, False)
        _widen(self._pipe)
        self._loop.add_reader(self._control.fileno(), self._on_control)
        self._loop.add_reader(self._pipe, self._on_output)
        self._send()

    async def settle(self, seconds: float) -> None:
        """Take the rest of the output: until its end, or so long, and what is there then."""
        await asyncio.wait([self._silent], timeout=seconds)
        left = _PIPE_SIZE
        while left > 0 and not self._silent.done():
            taken = self._on_output()
            left = left - taken if taken else 0

    async def kill(self) -> tuple[int, ...]:
        """Kill everything the command started; what could not be killed."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        done, _ = await asyncio.wait([self.gone], timeout=KILL_SECONDS)
        if not done:
            return ()
        await self.settle(SETTLE_SECONDS)
        return self.gone.result()

    def release(self) -> None:
        """Close everything, whether or not somebody still writes, and be forgotten."""
        self._close_theirs()
        self._close_control()
        self._close_pipe()
        self._forget(self)

    def _close_theirs(self) -> None:
        self._their_control.close()
        if self._their_pipe >= 0:
            os.close(self._their_pipe)
            self._their_pipe = -1

    def _close_control(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
        if not self._silent.done():
            self._silent.set_result(None)

    def _send(self) -> None:
        """Send the command, as much of it as the socket takes at a time."""
        try:
            sent = self._control.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)  # Nobody is there: the socket's end tells.
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._control.fileno(), self._send)
        else:
            self._loop.remove_writer(self._control.fileno())

    def _on_output(self) -> int:
        """Hand on what there is of the output: number of bytes, 0 for none at present."""
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
            self._on_end()

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
            case _:
                raise AssertionError(f"the monitor said {word!r}")

    def _on_end(self) -> None:
        """The monitor has ended, because nothing of the command is left or it was killed."""
        self._close_control()
        self._forget(self)
        if not self.ready.done():
            self.ready.set_result(False)
        if not self.exited.done():
            self.exited.set_exception(SupervisorLost("the supervisor of the command was killed"))
            # After a time limit or a cancellation nobody waits for it any more.
            self.exited.exception()
        if not self.gone.done():
            self.gone.set_result(())


def _packed(command: Command) -> bytes:
    """The command as `process_supervisor.read_command` reads it."""
    pairs = (f"{name}={value}" for name, value in command.environment.items())
    fields = [str(len(command.argv)), *command.argv, *pairs]
    data = b"\0".join(map(os.fsencode, fields))
    return len(data).to_bytes(4, "big") + data


def _pids(listed: str) -> tuple[int, ...]:
    return tuple(int(pid) for pid in listed.split(",") if pid)


def _not_started(number: int) -> CommandNotStarted:
    if number == errno.E2BIG:
        return CommandNotStarted("the command is too long for the system to start it")
    return CommandNotStarted(f"the system did not start the command: {os.strerror(number)}")


def _widen(pipe: int) -> None:
    """Let the pipe hold more, so that a lot of output costs fewer turns of the loop."""
    if not sys.platform.startswith("linux"):
        return
    import fcntl

    # An unprivileged user may have used up his share of pipe memory.
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_SIZE)


async def _to_the_end(job: _Job) -> tuple[int, ...]:
    """Kill a job, which has its own time limit, although the caller may be cancelled again."""
    task = asyncio.ensure_future(job.kill())
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    job.release()
    return task.result()
