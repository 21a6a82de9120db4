"""`amplifier` processes that begin in an interpreter which has imported it already.

Importing is nine tenths of a short run. So one interpreter for each worker of the suite imports
the program once and then only clones itself: every run is still a process of its own, a child of
the test, with its own descriptors, directory, environment, session, signals and exit code.

Run as a program it is that interpreter: requests come in on descriptor 0, one message each.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import gc
import inspect
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, ClassVar, NoReturn, cast

_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT = 0x8000
_SIGCHLD = 17

_LIMIT = 1 << 20

_BOUND_AT_START = ("PYTHON", "LC_", "LANG")
"""Beginnings of the variables that an interpreter reads when it starts."""

_READ_LATER = ("PYTHON_KEYRING_BACKEND", "PYTHONPATH")
"""Of these, the ones that a clone can still follow."""

_PACKAGES = ("amplifier_app", "amplifier_core", "amplifier_modules", "_pytest")
_LEFT_OUT = (
    *("amplifier_core.pytest_plugin", "amplifier_core.validation.behavioral"),
    *("amplifier_core.validation.structural", "amplifier_modules.provider_local.engine"),
)
"""What no run imports, pytest has to import itself, or starts threads."""

_THIRD_PARTY = (
    "asyncio",
    "bs4",
    "concurrent.futures.thread",
    # An ordinary user may be unable to read the interpreter's own files.
    "encodings.ascii",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.utf_16",
    "encodings.utf_8_sig",
    "filelock",
    "httpx",
    "jsonschema",
    "keyring.core",
    "mcp",
    "opentelemetry.sdk.trace.export",
    "pathspec",
    "prompt_toolkit.input.vt100",
    "pdb",
    "pytest_asyncio.plugin",
    "rich.console",
    "typer._adapters",
    "xml.etree.ElementTree",
    "yaml",
)


def is_available() -> bool:
    """Whether this machine can clone an interpreter so that the clone is the test's own child."""
    return sys.platform == "linux" and _CLONE is not None and not _measures_coverage()


def _measures_coverage() -> bool:
    # Coverage follows programs that start, not clones of one that was running.
    return any(name.startswith(("COV_CORE", "COVERAGE_")) for name in os.environ)


class WarmInterpreter:
    """The interpreter that the processes of one worker are cloned from."""

    _instances: ClassVar[list[WarmInterpreter]] = []
    _lock = threading.Lock()

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__))], stdin=theirs.fileno(), env=dict(environment)
            )
        self._socket = ours
        self._bound = _bound_at_start(environment)

    @classmethod
    def suited_to(cls, environment: Mapping[str, str]) -> WarmInterpreter | None:
        """The interpreter, started with the first process; None if `environment` needs another."""
        if not is_available():
            return None
        with cls._lock:
            if not cls._instances:
                # Clones follow another PYTHONPATH, but only a start installs the guard of the network.
                guard = str(Path(__file__).with_name("network_guard"))
                cls._instances.append(cls({**environment, "PYTHONPATH": guard}))
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
            one = cls(environment)
            cls._instances.append(one)
        try:
            yield
        finally:
            if one is not None:
                cls._instances.remove(one)
                one._socket.close()
                one._process.wait()

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
            program: What it runs: "amplifier", the "warden" of a module's checks, or "python" with
                the option -c.
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
        message = json.dumps(request).encode()
        descriptors = array.array("i", streams)
        with self._lock:
            self._socket.sendmsg(
                [message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())]
            )
            answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError("the warm interpreter has ended")
        return int(answer)


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


class WarmWarden(WarmProcess):
    """The process that supervises a module's checks."""

    _program = "warden"


class WarmPython(WarmProcess):
    """An interpreter with the option -c."""

    _program = "python"


_EXECUTE = cast("Any", subprocess.Popen)._execute_child
_PARAMETERS = inspect.signature(_EXECUTE)


# The other side: the interpreter that clones itself.


def _serve() -> NoReturn:
    for name in (*_THIRD_PARTY, "conditions", "kill_points", *_modules()):
        # Extras need not be installed.
        with contextlib.suppress(ImportError):
            import_module(name)
    _complete_models()
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _LIMIT, 3)
        if not message:
            os._exit(0)
        child = _clone_for_parent()
        if child == 0:
            requests.close()
            _become(json.loads(message), descriptors)
        requests.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _complete_models() -> None:
    """Build the validators that pydantic puts off until a model is first used."""
    from pydantic import BaseModel

    models = [BaseModel]
    while models:
        for model in models.pop().__subclasses__():
            models.append(model)
            if not model.__pydantic_complete__:
                model.model_rebuild(raise_errors=False)


def _modules() -> Iterator[str]:
    for package in _PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.startswith(_LEFT_OUT):
                yield module.name


def _clone_for_parent() -> int:
    """Fork, but as a sibling: the new process is a child of this one's parent."""
    libc = ctypes.PyDLL(None, use_errno=True)
    ctypes.pythonapi.PyOS_BeforeFork()
    child = libc.syscall(_CLONE, _CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if child < 0:
        raise OSError(ctypes.get_errno(), "cannot clone")
    return child


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the process that was asked for, as if it had just been started."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, 256)
    if request["has_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _follow_paths(request["environment"].get("PYTHONPATH", ""))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    if request["conditions"] is not None:
        import_module("conditions").apply_conditions(request["conditions"])
    sys.argv = list(request["arguments"])
    sys.path[0] = str(Path(sys.argv[0]).parent)
    _open_standard_streams()
    _PROGRAMS[request["program"]]()
    sys.stdout.flush()
    os._exit(0)


def _follow_paths(wanted: str) -> None:
    """Import from the folders of PYTHONPATH instead of those the interpreter was started with."""
    given = os.environ.get("PYTHONPATH", "")
    if wanted != given:
        own = given.split(os.pathsep)
        sys.path[1:] = [
            *filter(None, wanted.split(os.pathsep)),
            *(p for p in sys.path[1:] if p not in own),
        ]


def _run_amplifier() -> None:
    from amplifier_app.cli import main

    _fork_own_programs()
    main()


def _run_warden() -> None:
    from amplifier_app.commands.module.validation import warden

    _fork_own_programs()
    warden.main()


def _run_python() -> None:
    _, _, code, *arguments = sys.argv
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    finally:
        cast("Any", threading)._shutdown()


_PROGRAMS = {"amplifier": _run_amplifier, "warden": _run_warden, "python": _run_python}


def _fork_own_programs() -> None:
    """Fork the interpreters that the program starts for its own modules, instead of starting them."""
    cast("Any", subprocess.Popen)._execute_child = _fork_or_execute


def _fork_or_execute(self: subprocess.Popen[bytes], *args: Any, **kwargs: Any) -> None:
    given = _PARAMETERS.bind(self, *args, **kwargs).arguments
    run = _own_program(given["args"])
    if run is None:
        _EXECUTE(self, *args, **kwargs)
        return
    self.pid = os.fork()
    if self.pid == 0:
        try:
            _become_program(given, run)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    process = cast("Any", self)
    process._child_created = True
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(given[name] for name in pipes))


def _own_program(command: Any) -> Callable[[], None] | None:
    """What a command line runs, if it is an interpreter with a module of the program."""
    match command:
        case [sys.executable, "-P", "-m", str(name), *rest] if name.startswith("amplifier_app."):
            return partial(_run_module, name, list(rest))
        case [sys.executable, "-I", "-S", "-c", str(code), *_] if '"warden"' in code:
            return _run_warden
        case _:
            return None


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = [name, *arguments]
    # The option -P of its command line.
    del sys.path[0]
    # It is imported already, and runs again as the main module.
    sys.modules.pop(name, None)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _become_program(given: Mapping[str, Any], run: Callable[[], None]) -> NoReturn:
    """Be a program that was started by this process."""
    # Objects of the process before own descriptors that this one uses again.
    gc.freeze()
    if given["start_new_session"]:
        os.setsid()
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], number)
    begin = 3
    for descriptor in sorted(given["pass_fds"]):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, 256)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given["cwd"] is not None:
        os.chdir(given["cwd"])
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    if given["preexec_fn"] is not None:
        given["preexec_fn"]()
    _open_standard_streams()
    run()
    sys.stdout.flush()
    os._exit(0)


def _open_standard_streams() -> None:
    """The three standard streams, as an interpreter opens them when it starts."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        before = getattr(sys, name)
        if not _is_open(number):
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
            continue
        raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115 - they live as long as we do
        stream = io.TextIOWrapper(
            cast("Any", raw),
            encoding=getattr(before, "encoding", "utf-8"),
            errors=getattr(before, "errors", "strict"),
            line_buffering=number == 2 or raw.isatty(),
        )
        cast("Any", stream).mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _serve()
