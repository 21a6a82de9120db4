"""The interpreter that has imported the program and clones itself; started by `warm_interpreter.py`.

Requests come in on descriptor 0, one message each.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import fcntl
import gc
import inspect
import io
import json
import logging
import os
import platform
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from copy import copy
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, NoReturn, cast

_CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
_CLONE_PARENT = 0x8000
_SIGCHLD = 17

_HUGE_PAGE = 2 << 20
_COLLAPSE = 25
"""The advice MADV_COLLAPSE."""

_LIMIT = 1 << 20

_CACHED = type(lru_cache(int))

_EXECUTE = cast("Any", subprocess.Popen)._execute_child
_PARAMETERS = inspect.signature(_EXECUTE)

_PACKAGES = (
    *("amplifier_support", "amplifier_core", "amplifier_modules", "amplifier_app"),
    "_pytest",
)
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
    "typer._click._textwrap",
    "typer._click.decorators",
    "uv",
    "xml.etree.ElementTree",
    "yaml",
)


def _serve() -> NoReturn:
    for name in (*_THIRD_PARTY, "conditions", "kill_points", *_modules()):
        # Extras need not be installed.
        with contextlib.suppress(ImportError):
            import_module(name)
    _complete_models()
    requests = socket.socket(fileno=os.dup(0))
    with _nothing_left():
        contextvars.copy_context().run(_rehearse)
    gc.collect()
    gc.freeze()
    _use_huge_pages()
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


def _rehearse() -> None:
    """Run two commands, so that clones find code specialized, patterns compiled and types looked up."""
    from amplifier_app.cli import main

    Path("work").mkdir()
    os.environ["AMPLIFIER_HOME"] = str(Path("home").absolute())
    os.chdir("work")
    with open(os.devnull, "r+b") as null:
        for number in range(3):
            os.dup2(null.fileno(), number)
    for arguments in (["run", "--profile", "mock", "hi"], ["session", "list"]):
        main(arguments)


@contextlib.contextmanager
def _nothing_left() -> Generator[None]:
    """Undo what a command changes in its process; its folder is a new one, and has no content."""
    streams = [os.dup(number) for number in range(3)]
    environment, folder = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    variables = [
        (value, copy(value))
        for name, module in list(sys.modules.items())
        if name.startswith("amplifier_")
        for variable, value in vars(module).items()
        if type(value) in (dict, list, set) and not variable.startswith("__")
    ]
    log_handlers, thresholds = list(logging.root.handlers), gc.get_threshold()
    empty = tempfile.mkdtemp()
    os.chdir(empty)
    yield
    os.chdir(folder)
    shutil.rmtree(empty)
    tempfile.tempdir = None
    cast("Any", asyncio).set_event_loop_policy(None)
    logging.root.handlers[:] = log_handlers
    gc.set_threshold(*thresholds)
    for thread in threading.enumerate()[1:]:
        thread.join()
    for value, before in variables:
        if value != before:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(before)
    # A command freezes the objects of its start.
    gc.unfreeze()
    for one in gc.get_objects():
        if isinstance(one, _CACHED) and one.__module__.startswith("amplifier_"):
            one.cache_clear()
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


def _use_huge_pages() -> None:
    """Collapse the heap into huge pages, so that a clone copies and clears a tenth of the page tables."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access != "rw-p" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin += -begin % _HUGE_PAGE
        for address in range(begin, end - _HUGE_PAGE + 1, _HUGE_PAGE):
            # Kernels before 6.1 refuse this.
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE_PAGE), _COLLAPSE)


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


def _run_own_module() -> None:
    run = _own_program(sys.argv)
    assert run is not None, sys.argv
    _fork_own_programs()
    run()


def _run_python() -> None:
    _fork_own_programs()
    _, _, code, *arguments = sys.argv
    sys.argv = ["-c", *arguments]
    sys.path[0] = ""
    sys.modules["__main__"] = main = ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)
    finally:
        cast("Any", threading)._shutdown()


_PROGRAMS = {
    "amplifier": _run_amplifier,
    "warden": _run_warden,
    "module": _run_own_module,
    "python": _run_python,
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
