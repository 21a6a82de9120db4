"""What a warm interpreter does before it is cloned: everything that its clones then find done."""

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import logging
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from copy import copy
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, cast

from amplifier_app.base.installed import bundled_modules, modules_on_path
from amplifier_app.base.own_packages import OWN_PACKAGES
from amplifier_app.commands import group
from amplifier_app.commands.help import walk_commands
from amplifier_modules._shared.module import config_schema
from amplifier_modules._shared.module.declaration import ModuleDeclaration
from amplifier_support import secret_shapes
from amplifier_support.sandbox import available
from amplifier_support.text import lazy_pattern

_PAUSES = {
    "amplifier_app.chat.ask": "READ_SECONDS",
    "amplifier_app.chat.approval_card": "READ_SECONDS",
    "amplifier_app.chat.terminal": "TYPING_PAUSE",
    "amplifier_app.chat.application": "TYPING_PAUSE",
}
"""Seconds that the program gives a person to read a question, or to go on typing."""
_PAUSE = 0.25
"""Enough for a test, which knows what to answer. Tests of the pauses themselves start the program cold."""

_HUGE_PAGE = 2 << 20
_COLLAPSE = 25
"""The advice MADV_COLLAPSE."""

_PLAN = """\
session: {orchestrator: loop-streaming, context: context-simple}
tools: [tool-filesystem]
hooks: [hooks-approval]
providers:
- module: provider-mock
  config:
    replies:
    - tool_calls: [{name: write_file, input: {file_path: note.txt, content: kept}}]
    - done
"""

_CACHED = type(lru_cache(int))
_KEPT = {
    *("_compile_new", "_default_factories", "_index", "_matches", "choose_level", "cell_width"),
    *("compiled", "is_secret_name", "secret_shapes"),
}
"""Functions of the program whose results depend on their arguments and on the code alone."""

_PACKAGES = (
    *OWN_PACKAGES,
    "_pytest",
)
_LEFT_OUT = (
    *("amplifier_core.pytest_plugin", "amplifier_core.validation.behavioral"),
    *("amplifier_core.validation.structural", "amplifier_modules.provider_local.provider"),
    *("amplifier_kit.pytest_plugins.module_fixtures", "amplifier_kit.validation.suites"),
    # A process that has imported anthropic refuses modules that require another version of it.
    "amplifier_modules.provider_anthropic.sdk",
    "_pytest.pytester",
)
"""What few runs import, pytest has to import itself, or starts threads."""

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
    "httpx",
    "jsonschema",
    "keyring.core",
    "mcp.server.mcpserver",
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


def warm_up() -> None:
    """Import the program, run some commands, and arrange the memory so that a clone copies little."""
    # Only a power failure loses what was written and not synced, and the disk is most of what a run waits for.
    os.fsync = os.fdatasync = _skip_sync
    for name in (*_THIRD_PARTY, "conditions", "kill_points", *_modules()):
        # Extras need not be installed.
        with contextlib.suppress(ImportError):
            import_module(name)
    for module, pause in _PAUSES.items():
        setattr(import_module(module), pause, _PAUSE)
    _complete_models()
    with _nothing_left():
        contextvars.copy_context().run(_rehearse)
    _compile_patterns()
    _build_schemas()
    _read_packages()
    _probe_sandbox()
    gc.collect()
    gc.freeze()
    use_huge_pages()


def _skip_sync(file: Any) -> None:
    """Fail where syncing would: at a descriptor that is not open."""
    os.fstat(file if isinstance(file, int) else file.fileno())


def _complete_models() -> None:
    """Build the validators that pydantic puts off until a model is first used."""
    from pydantic import BaseModel

    # With each default made by a factory, it would copy all of sys.modules, and so the memory of every module.
    fields = cast("Any", import_module("pydantic._internal._fields"))
    fields.takes_validated_data_argument = cache(fields.takes_validated_data_argument)
    models = [BaseModel]
    while models:
        for model in models.pop().__subclasses__():
            models.append(model)
            if not model.__pydantic_complete__:
                model.model_rebuild(raise_errors=False)


def _rehearse() -> None:
    """Run some commands, so that clones find code specialized, patterns compiled and types looked up."""
    from amplifier_app.cli import main

    Path("work").mkdir()
    os.environ["AMPLIFIER_HOME"] = str(Path("home").absolute())
    os.chdir("work")
    with open(os.devnull, "r+b") as null:
        for number in range(3):
            os.dup2(null.fileno(), number)
    Path("plan.yaml").write_text(_PLAN)
    commands = (
        ["run", "--profile", "mock", "hi"],
        ["run", "--profile", "mock", "--output", "json", "hi"],
        ["run", "-f", "plan.yaml", "--approve", "allow", "hi"],
        ["run", "--continue", "hi"],
        ["plan", "check", "-f", "plan.yaml"],
        ["session", "list"],
    )
    # Code is specialized when it has been called eight times.
    for arguments in commands * 4:
        main(arguments)


def _compile_patterns() -> None:
    """Compile the patterns that the program compiles when it first uses them."""
    for one in gc.get_objects():
        if type(one) is type(lazy_pattern("")):
            for method in ("finditer", "fullmatch", "match", "search", "split", "sub"):
                getattr(one, method)
    for shape in secret_shapes.secret_shapes():
        secret_shapes.compiled(shape)


def _build_schemas() -> None:
    """Spare clones the schemas of the modules' configs: each gets a copy."""
    build = config_schema.build_config_schema
    written = cache(lambda model: pickle.dumps(build(model)))
    config_schema.build_config_schema = lambda model: pickle.loads(written(model))
    for one in gc.get_objects():
        if isinstance(one, ModuleDeclaration):
            one.config_schema()


def _read_packages() -> None:
    """Find the modules and commands of installed packages, and build the command line from these."""
    # The first is the folder of the program, which is another one for the console script.
    first, sys.path[0] = sys.path[0], str(Path(sys.executable).parent)
    group.amplifier_command = cache(group.amplifier_command)
    root = group.amplifier_command()
    for _ in walk_commands(root, None):
        pass
    bundled_modules()
    modules_on_path()
    sys.path[0] = first


def forget_packages() -> None:
    """Forget what was found in the folders of `sys.path`: they are about to change."""
    for found in (bundled_modules, group._find_commands, group.amplifier_command):
        cast("Any", found).cache_clear()


def _probe_sandbox() -> None:
    """Spare clones the process that finds out whether commands can start in namespaces.

    A clone whose rights or machine differ starts one itself, as does one where it fails here.
    """
    machine, start_one = available._machine(), available._start_one
    if start_one(inside=True) is None:

        def start_where_it_differs(*, inside: bool) -> str | None:
            if inside and available._machine() == machine:
                return None
            return start_one(inside=inside)

        cast("Any", available)._start_one = start_where_it_differs
    available._machine.cache_clear()


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
        is_own = isinstance(one, _CACHED) and one.__module__.startswith("amplifier_")
        if is_own and one.__name__ not in _KEPT:
            one.cache_clear()
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


def use_huge_pages() -> None:
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
