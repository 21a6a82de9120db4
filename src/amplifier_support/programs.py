"""Find helper programs (git, rg, uv, a shell) and run them to their end; nothing else in the project does.

Which program runs is decided by the user and the system, never by the folder someone works in:
relative and empty entries of PATH are ignored, and so are entries inside the working folder or its
project. A helper runs in a session of its own, with a limit, and everything it started ends with
it.

git runs with no configuration but what the caller asks for, and without its own environment variables
except those asked for. Keys are not passed on, except to the user's credential helpers. The configuration
of a repository applies only if the caller points git at that repository.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from amplifier_support.environment import absolute_entries, without_model_keys, without_secrets
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.working_folder import working_folder

_POLL_SECONDS = 0.1
_PROJECT_MARKS = (".git", ".amplifier")


# -- finding -----------------------------------------------------------------------------


def find_program(name: str, folder: str | None = None) -> str | None:
    """The absolute path of a helper program.

    Args:
        name: Its name, without a folder.
        folder: The folder it is to work in, in addition to the current one.

    Returns:
        None if PATH has no such program outside these folders.
    """

    def program_in(entry: str) -> str | None:
        path = os.path.join(entry, name)
        # With a folder in front, `which` looks nowhere else, also on Windows, where it adds the ending.
        return shutil.which(path) if os.name == "nt" or os.access(path, os.F_OK) else None

    # Few entries have the program, and to check an entry takes longer.
    return next(map(program_in, _trusted(filter(program_in, _path_entries()), folder)), None)


def package_folder(name: str) -> str:
    """The folder to put on the path of an isolated interpreter that imports an installed package.

    Args:
        name: The package's name; it is not imported here.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return str(Path(spec.origin).parents[1])


def search_path(folder: str | None = None) -> str:
    """The PATH for helper programs, which may start others themselves."""
    return os.pathsep.join(_trusted(_path_entries(), folder))


def _path_entries() -> list[str]:
    entries = absolute_entries(os.environ.get("PATH", os.defpath)).split(os.pathsep)
    return [entry for entry in entries if entry]


def _trusted(entries: Iterable[str], folder: str | None) -> Iterator[str]:
    # The system's own folders, and that of the interpreter which runs this very code.
    trusted = {*os.defpath.split(os.pathsep), os.path.dirname(sys.executable)}
    untrusted = cache(_untrusted_roots)
    for entry in entries:
        if entry in trusted or not _is_inside(entry, untrusted(folder)):
            yield entry


def _untrusted_roots(folder: str | None) -> set[str]:
    """The folders someone works in, each up to the top of its project.

    A folder that contains the home directory is not one of them: the user's own programs lie below it.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    starts = {folder} if folder else set[str]()
    with contextlib.suppress(FileNotFoundError):
        starts.add(working_folder())
        starts.add(os.getcwd())
    roots: set[str] = set()
    for start in starts:
        path = os.path.realpath(start)
        top = path
        while not _is_inside(home, {path}):
            if any(os.path.lexists(os.path.join(path, mark)) for mark in _PROJECT_MARKS):
                top = path
            path = os.path.dirname(path)
        if not _is_inside(home, {top}):
            roots.add(top)
    return roots


def _is_inside(path: str, roots: set[str]) -> bool:
    real = os.path.realpath(path)
    return any(is_below(real, root) for root in roots)


# -- running -----------------------------------------------------------------------------


class Finished(NamedTuple):
    """The result of a helper: its exit code and its output, as text."""

    code: int
    stdout: str
    stderr: str


class Stopped(Exception):
    """The helper was ended because its result is no longer wanted."""


class TimedOut(Exception):
    """The helper took longer than its limit."""


class TooMuchOutput(Exception):
    """The helper wrote more than its limit."""


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float | None,
    stop: threading.Event | None = None,
    max_bytes: int | None = None,
) -> Finished:
    """Run a helper to its end; if it is ended early, so is everything it started.

    Args:
        argv: Absolute path of the program, and its arguments; never goes through a shell.
        cwd: The folder it runs in.
        env: Its whole environment.
        seconds: Time limit; None for none.
        stop: When set, the helper is ended.
        max_bytes: Limit of what it may write to stdout, in bytes.

    Raises:
        Stopped: `stop` was set, or this process is ending.
        TimedOut: The time limit was reached.
        TooMuchOutput: The limit of the output was reached.
        OSError: It could not be started.
    """
    if not os.path.isabs(argv[0]):
        raise FileNotFoundError(f"not an absolute path of a program: {argv[0]!r}")
    start = object()
    _starting.add(start)
    try:
        if _leaving:
            raise Stopped(argv)
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        _running.add(process)
    finally:
        _starting.discard(start)
    limit = None if seconds is None else time.monotonic() + seconds
    try:
        stdout, stderr = _read_to_end(process, limit, stop, max_bytes)
    except TimedOut:
        raise TimedOut(f"{argv[0]} took longer than {seconds:g} s") from None
    finally:
        _kill_group(process)
        _running.discard(process)
    if _leaving:
        raise Stopped(argv)
    texts = (data.decode("utf-8", "replace") for data in (stdout, stderr))
    return Finished(process.returncode, *texts)


def _read_to_end(
    process: subprocess.Popen[bytes],
    limit: float | None,
    stop: threading.Event | None,
    max_bytes: int | None,
) -> tuple[bytes, bytes]:
    while True:
        patience = _POLL_SECONDS
        if limit is not None:
            patience = min(patience, max(limit - time.monotonic(), 0.001))
        try:
            stdout, stderr = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired as so_far:
            _check_size(so_far.stdout, max_bytes)
        else:
            _check_size(stdout, max_bytes)
            return stdout, stderr
        if stop is not None and stop.is_set():
            raise Stopped(process.args)
        if limit is not None and time.monotonic() > limit:
            raise TimedOut


def _check_size(stdout: bytes | None, max_bytes: int | None) -> None:
    if max_bytes is not None and len(stdout or b"") > max_bytes:
        raise TooMuchOutput(f"more than {max_bytes} bytes of output")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a helper that still runs, and everything it started."""
    # The number of one that has ended may belong to another process by now.
    if process.returncode is None:
        _send_kill(process)
        process.communicate()


def _send_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # It ended by itself meanwhile; macOS reports that as a permission error.
        process.kill()


_running: set[subprocess.Popen[bytes]] = set()
"""The helpers of this process; a program that is interrupted leaves without waiting for their threads."""
_starting: set[object] = set()
"""Starts of helpers that are not among them yet."""
_START_SECONDS = 1.0
_leaving = False


@atexit.register
def _kill_all() -> None:
    global _leaving
    _leaving = True
    limit = time.monotonic() + _START_SECONDS
    while _starting and time.monotonic() < limit:
        time.sleep(0.005)
    for process in list(_running):
        if process.returncode is None:
            _send_kill(process)


def _begin_without_helpers() -> None:
    _running.clear()
    _starting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_without_helpers)


_NO_PROGRAMS = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.askPass", ""),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)
_NO_HELPERS = (("credential.helper", ""),)
_USER_CONFIG = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")


def git_environment(
    config: Iterable[tuple[str, str]] = (),
    *,
    folder: str | None = None,
    keep: Collection[str] = (),
    user_config: bool = False,
    credential_helpers: bool = False,
    protocols: Collection[str] = (),
) -> dict[str, str]:
    """The environment to run git in.

    Args:
        config: Settings, in addition to those that keep git from starting programs; a name may
            occur several times.
        folder: The folder git works on; programs in it are not used.
        keep: Variables of git (`GIT_*`) that stay as the user has set them.
        user_config: Also read the configuration of the user and the system.
        credential_helpers: Run the user's credential helpers. They may read a token from a variable,
            so only keys of model providers are withheld.
        protocols: Ways to reach other repositories, such as `https`, whatever the configuration says.
    """
    kept = (*keep, *(_USER_CONFIG if user_config else ()))
    passed_on = (
        without_model_keys(os.environ)
        if credential_helpers
        else without_secrets(os.environ, passthrough=kept)
    )
    env = {
        name: value
        for name, value in passed_on.items()
        if name in kept or not name.startswith(("GIT_", "SSH_ASKPASS"))
    }
    env.update(
        PATH=search_path(folder),
        LC_ALL="C",
        GIT_PAGER="cat",
        GIT_TERMINAL_PROMPT="0",
        GIT_ALLOW_PROTOCOL=":".join(protocols) or "none",
        SSH_ASKPASS_REQUIRE="never",
    )
    if not protocols:
        # A missing object would be fetched by a program that the repository names.
        env["GIT_NO_LAZY_FETCH"] = "1"
    if not user_config:
        env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, GIT_ATTR_NOSYSTEM="1")
    settings = [*_NO_PROGRAMS, *(() if credential_helpers else _NO_HELPERS), *config]
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env
