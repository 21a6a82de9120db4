"""Runs commands so that nothing they start outlives its time.

Each command gets a session and process group of its own. Unless it has streams of its own, its
stdin is the null device and both outputs share one pipe. A command ends when its first process
does; processes it left in the background do not delay that, but they remain known, their output is
still read, and they are killed with the session. `supervisor` describes how, and what happens on
systems other than Linux.
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
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import amplifier_support
from amplifier_support.environment import minimal_environment
from amplifier_support.process.job import (
    KILL_SECONDS,
    SETTLE_SECONDS,
    Command,
    CommandError,
    CommandNotStarted,
    Job,
    SupervisorLost,
    describe_error,
)
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable

__all__ = [
    "Command",
    "CommandError",
    "CommandNotStarted",
    "Ended",
    "ProcessRunner",
    "SupervisorLost",
]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PACKAGES = str(Path(amplifier_support.__file__).parents[1])
# A module is compiled only once; the folders come last, so that they hide no standard module.
_START = """\
import sys
sys.path += sys.argv[2:4]
__import__(sys.argv[4]).main()
"""

_LAST_SECONDS = 5.0
"""How long is waited for the last output where nothing is left; it is there already."""

_LONGEST_REASON = 4096


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

    Args:
        sandbox: Restricts every command; None for the programs that are not the agent's.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox
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
        if confinement is not None and not needed <= self._visible:
            # Other namespaces are needed; commands in those that exist go on.
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
        try:
            taken = job.hand_over(channel)
        except BaseException:
            job.release()
            raise
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
        last_words = os.read(stderr, _LONGEST_REASON)
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
