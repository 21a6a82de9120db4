"""The interpreter that has imported the program and clones itself; started by `warm_interpreter.py`.

Descriptor 0 is a listening socket. The first connection is the one of the process that started it.
"""

import atexit
import fcntl
import gc
import inspect
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

_LIMIT = 1 << 20
_ANSWER = 200
"""Bytes of an answer."""

_EXECUTE = cast("Any", subprocess.Popen)._execute_child
_PARAMETERS = inspect.signature(_EXECUTE)


def _serve(listening: socket.socket) -> NoReturn:
    """Answer requests until the connection of the process that started this one is closed.

    A request is the description of a process to clone, or the id of one whose end is awaited.
    """
    # Ctrl-C ends the process that sends requests, and its end ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    starter = listening.accept()[0]
    connections = [starter, listening]
    while True:
        for connection in select.select(connections, [], [])[0]:
            if connection is listening:
                connections.append(listening.accept()[0])
                continue
            try:
                message, descriptors, _, _ = socket.recv_fds(connection, _LIMIT, 3)
                if message:
                    connection.send(_answer(message, descriptors, connections))
                    continue
            except ConnectionError:
                pass  # The other end was closed before it had its answer.
            if connection is starter:
                os._exit(0)
            connections.remove(connection)
            connection.close()


def _answer(message: bytes, descriptors: list[int], connections: list[socket.socket]) -> bytes:
    """Clone a process and give its id, or give the status of one that has ended; or else the reason after `!`."""
    try:
        if message.isdigit():
            return b"%d" % os.waitpid(int(message), 0)[1]
        child = os.fork()
    except OSError as error:  # too many processes, for example, which is a matter of one test
        for descriptor in descriptors:
            os.close(descriptor)
        return f"!{error}".encode()[:_ANSWER]
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for connection in connections:
            connection.close()
        _become(json.loads(message), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return b"%d" % child


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
    _run_to_end(_PROGRAMS[request["program"]])


def _follow_paths(wanted: str) -> None:
    """Import from the folders of PYTHONPATH instead of those the interpreter was started with."""
    given = os.environ.get("PYTHONPATH", "")
    if wanted != given:
        own = given.split(os.pathsep)
        sys.path[1:] = [
            *filter(None, wanted.split(os.pathsep)),
            *(p for p in sys.path[1:] if p not in own),
        ]
        import_module("warm_up").forget_packages()


def _run_amplifier() -> None:
    from amplifier_app.cli import main

    _fork_own_programs()
    main()


def _run_limited_program() -> None:
    from amplifier_support.process.limited_program import main

    _fork_own_programs()
    main()


def _run_own_module() -> None:
    run = _own_program(sys.argv)
    assert run is not None, sys.argv
    _fork_own_programs()
    run()


def _run_python() -> None:
    _fork_own_programs()
    _, _, code, *arguments = sys.argv
    _execute(code, arguments)


def _run_script() -> None:
    _, script, *arguments = sys.argv
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def _execute(code: str, arguments: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), main.__dict__)


_PROGRAMS = {
    "amplifier": _run_amplifier,
    "limited program": _run_limited_program,
    "module": _run_own_module,
    "python": _run_python,
    "script": _run_script,
}


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
        case [sys.executable, "-P", "-m", str(name), *rest] if name.startswith("amplifier_"):
            return partial(_run_module, name, list(rest))
        case [sys.executable, "-I", "-S", "-c", str(code), *_] if "limited_program" in code:
            return _run_limited_program
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
    _run_to_end(run)


def _run_to_end(run: Callable[[], None]) -> NoReturn:
    """Run a program and end like an interpreter, which would copy all its memory to clear it."""
    code = 0
    try:
        run()
    except KeyboardInterrupt:
        raise  # it ends by the signal
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    cast("Any", threading)._shutdown()
    cast("Any", atexit)._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code & 0xFF)


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
    # Ctrl-C ends it without a traceback; it starts with the signal blocked.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    import_module("warm_up").warm_up()
    _serve(socket.socket(fileno=os.dup(0)))
