"""`amplifier` processes that begin in an interpreter which has imported it already.

Importing is nine tenths of a short run. So an interpreter imports the program once and then only
clones itself: every run is still a process of its own, with its own descriptors, directory, environment,
session, signals and exit code.

`clone_server.py` is that interpreter. The workers of a run use the same one, which `tests/conftest.py`
starts; a run without workers starts it with its first process.
"""

from __future__ import annotations

import array
import contextlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

_BOUND_AT_START = ("PYTHON", "LC_", "LANG")
"""Beginnings of the variables that an interpreter reads when it starts."""

_READ_LATER = ("PYTHON_KEYRING_BACKEND", "PYTHONPATH")
"""Of these, the ones that a clone can still follow."""

_SERVER = Path(__file__).with_name("clone_server.py")


def is_available() -> bool:
    """Whether this machine can clone an interpreter and wait for the end of the clone."""
    return sys.platform == "linux" and not _measures_coverage()


def _measures_coverage() -> bool:
    # Coverage follows programs that start, not clones of one that was running.
    return any(name.startswith(("COV_CORE", "COVERAGE_")) for name in os.environ)


class WarmInterpreter:
    """The interpreter that the processes of one worker are cloned from."""

    _instances: ClassVar[list[WarmInterpreter]] = []
    _lock = threading.Lock()

    def __init__(
        self,
        requests: socket.socket,
        environment: Mapping[str, str],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._socket = requests
        self._bound = _bound_at_start(environment)
        self._process = process
        self._statuses: dict[int, int] = {}
        self._waiting = threading.Lock()
        self.address = ""

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> WarmInterpreter:
        """Start an interpreter with this environment; other processes may `connect` to its address."""
        address = f"amplifier-tests-{uuid.uuid4()}"
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
                listening.bind(f"\0{address}")
                listening.listen()
                ours.connect(f"\0{address}")
                process = subprocess.Popen(
                    [sys.executable, str(_SERVER)],
                    stdin=listening.fileno(),
                    env=dict(environment),
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        interpreter = cls(ours, environment, process)
        interpreter.address = address
        return interpreter

    @classmethod
    def connect(cls, environment: Mapping[str, str], address: str) -> None:
        """Use an interpreter that another process has started with this environment and address."""
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.connect(f"\0{address}")
        cls._instances.append(cls(requests, environment))
        cls._instances[-1].address = address

    def close(self) -> None:
        """End the interpreter; what was cloned from it goes on."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()

    @classmethod
    def suited_to(cls, environment: Mapping[str, str]) -> WarmInterpreter | None:
        """The interpreter, started with the first process; None if `environment` needs another."""
        if not is_available():
            return None
        with cls._lock:
            if not cls._instances:
                from tests.support.cli import child_environment

                # That of most processes, not of the one that happens to be the first.
                cls._instances.append(cls.start(child_environment(Path(os.devnull))))
        bound = _bound_at_start(environment)
        return next((one for one in cls._instances if one._bound == bound), None)

    @classmethod
    @contextlib.contextmanager
    def with_environment(cls, environment: Mapping[str, str]) -> Generator[None]:
        """Keep an interpreter for processes that need another one, such as those in other locales.

        Worth its start if there are many of them.
        """
        one = None
        if cls.suited_to(environment) is None and is_available():
            one = cls.start(environment)
            cls._instances.append(one)
        try:
            yield
        finally:
            if one is not None:
                cls._instances.remove(one)
                one.close()

    def clone(
        self,
        arguments: list[str],
        cwd: str | Path | None,
        environment: Mapping[str, str],
        streams: list[int],
        *,
        program: str = "amplifier",
        has_terminal: bool = False,
        conditions: Mapping[str, Any] | None = None,
    ) -> int:
        """Start a process with the three standard streams given.

        Args:
            arguments: Its command line.
            program: What it runs: "amplifier", the "limited program" that runs a module's checks, a "module" of the
                program, a "script", or "python" with the option -c.
            cwd: Its working directory; that of this process if None.
            environment: Its environment.
            streams: The descriptors of its standard input, output and error.
            has_terminal: Whether its standard input is its controlling terminal.
            conditions: See `tests.support.conditions`.

        Returns:
            Its process id.
        """
        request = {
            "program": program,
            "arguments": arguments,
            "cwd": str(Path.cwd() / (cwd or "")),
            "environment": dict(environment),
            "has_terminal": has_terminal,
            "conditions": conditions,
        }
        process = self._ask(json.dumps(request).encode(), array.array("i", streams).tobytes())
        self._statuses.pop(process, None)
        return process

    def wait(self, process: int, timeout: float | None) -> int | None:
        """Wait for the end of a process that was cloned from it, which need not be a child of this one.

        Args:
            process: Its id.
            timeout: The limit in seconds; None for no limit.

        Returns:
            Its status, as of `os.waitpid`; None if it still runs.
        """
        if not _has_ended(process, timeout):
            return None
        with self._waiting:
            # The interpreter is asked once, also if several threads wait.
            if process not in self._statuses:
                self._statuses[process] = self._ask(str(process).encode())
            return self._statuses[process]

    def _ask(self, request: bytes, descriptors: bytes = b"") -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)]
        try:
            with self._lock:
                self._socket.sendmsg([request], rights)
                answer = self._socket.recv(200)
        except ConnectionError:
            answer = b""
        if not answer:
            raise RuntimeError(
                "the interpreter that processes are cloned from has ended; see its output"
            )
        if answer.startswith(b"!"):
            raise RuntimeError(
                f"the interpreter cannot clone or await a process: {answer.decode()}"
            )
        return int(answer)


def _has_ended(process: int, timeout: float | None) -> bool:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True  # Another thread has asked for its status.
    try:
        return select.select([descriptor], [], [], timeout)[0] != []
    finally:
        os.close(descriptor)


def _bound_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_BOUND_AT_START) and name not in _READ_LATER
    }


class WarmProcess(subprocess.Popen[bytes]):
    """A `Popen` whose process is cloned from a warm interpreter, in a session of its own."""

    _program = "amplifier"

    def __init__(
        self,
        interpreter: WarmInterpreter,
        args: list[str],
        *,
        conditions: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._interpreter = interpreter
        self._conditions = conditions
        super().__init__(args, **options)

    def _internal_poll(self, **_: Any) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            status = self._interpreter.wait(self.pid, timeout)
            if status is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _execute_child(self, *args: Any, **kwargs: Any) -> None:
        given = _PARAMETERS.bind(self, *args, **kwargs).arguments
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self.pid = self._interpreter.clone(
            cast("list[str]", given["args"]),
            given["cwd"],
            given["env"],
            [number if given_ == -1 else given_ for number, given_ in enumerate(streams)],
            program=self._program,
            conditions=self._conditions,
        )
        self._child_created = True
        cast("Any", self)._close_pipe_fds(*(given[name] for name in pipes))


class WarmLimitedProgram(WarmProcess):
    """The process that supervises a module's checks."""

    _program = "limited program"


class WarmModule(WarmProcess):
    """An interpreter with the options -P and -m and a module of the program."""

    _program = "module"


class WarmPython(WarmProcess):
    """An interpreter with the option -c."""

    _program = "python"


_PARAMETERS = inspect.signature(cast("Any", subprocess.Popen)._execute_child)
