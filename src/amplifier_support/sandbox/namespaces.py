"""The namespace layer: bubblewrap in front of the launcher of commands.

Inside, the launcher and its commands see the file system read-only but for what they may change, a
`/tmp`, `/dev/shm` and `/run` of their own, only the processes they started, and a network with
nothing but its own loopback interface. The kernel layer applies there as well.

A writable folder may hold what runs later, outside of the sandbox: `.amplifier`, and the hooks and
the configuration of its git repository. These stay read-only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from amplifier_support.below import is_below
from amplifier_support.environment import minimal_environment
from amplifier_support.programs import TimedOut, find_program, run

_PROBE_SECONDS = 10.0
_KEPT_FOR_ROOT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Capabilities that work on files of other users needs; none of them reaches beyond the mounts."""

_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")
_FIXED_BELOW_PROC = (
    *("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/acpi", "/proc/scsi"),
)
_SHOWN_BELOW_RUN = ("/run/current-system", "/run/opengl-driver", "/run/systemd/resolve")
_RUN_AT_LOGIN = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
    *(".config/fish", ".config/autostart", ".config/systemd", ".config/environment.d"),
    *(".gitconfig", ".config/git", ".xprofile", ".xinitrc", ".xsession", ".pam_environment"),
)
"""What runs, or makes git run, programs of the user; relative to the home directory."""

_LARGEST_CONFIG = 1024 * 1024
_FOLLOWED = re.compile(
    r"^\s*(hookspath|fsmonitor|path)\s*=([^#;\n]+)", re.IGNORECASE | re.MULTILINE
)

_SHARED_MEMORY, _TEMPORARY, _EMPTY, PROXIES = "shm", "tmp", "empty", "proxies"


class Socket(NamedTuple):
    """A UNIX socket in use: where it was bound, and its number, which is never used again."""

    path: str
    number: int


class View(NamedTuple):
    """What commands see, as absolute paths with links resolved.

    Attributes:
        folder: The working directory.
        write: Folders they may change.
        shown: Folders they may read although others hide them.
        hidden: Files and folders they do not see.
        private: The folder for their temporary files.
        network: Whether they use the network of the machine.
        sockets: UNIX sockets of the machine, as `sockets_in_use` returns them.
        proxy: The socket of their proxy, in the folder `PROXIES`; None if they have none.
    """

    folder: str
    write: tuple[str, ...]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    private: str
    network: bool
    sockets: frozenset[Socket]
    proxy: str | None = None


class Unavailable(Exception):
    """There are no namespaces here; the message says why, as a clause."""


@cache
def starter() -> tuple[str, ...]:
    """How bubblewrap starts here: its path and what it needs to get its namespaces.

    It is found out by starting it, once. A program in the working directory is not used.

    Raises:
        Unavailable: It is missing, or cannot be started.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable("there are namespaces on Linux only")
    program = find_program("bwrap")
    if program is None:
        raise Unavailable("bubblewrap (bwrap) is not installed")
    problem = ""
    for options in _namespace_options():
        start = (program, *options)
        problem = _try(start)
        if not problem:
            return start
    raise Unavailable(f"bubblewrap cannot make namespaces: {problem}")


def _namespace_options() -> Iterator[tuple[str, ...]]:
    """The options with which bubblewrap may get its namespaces, the best first."""
    drop = ("--cap-drop", "ALL")
    if os.geteuid() == 0:
        # In a user namespace, files of other users could not be changed.
        yield (*drop, *(word for name in _KEPT_FOR_ROOT for word in ("--cap-add", f"CAP_{name}")))
    yield ("--unshare-user", *drop)


def _try(start: Sequence[str]) -> str:
    """Start a program that does nothing; why it failed, or nothing."""
    options = [
        *_namespaces(network=False),
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    line = [*start, *options, "--", "/bin/sh", "-c", ":"]
    try:
        done = run(line, cwd=Path("/"), env=minimal_environment(), seconds=_PROBE_SECONDS)
    except (OSError, TimedOut) as error:
        return str(error)
    if done.code == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.code}"


def launcher(start: Sequence[str], view: View) -> list[str]:
    """The beginning of a command line that starts a program with the view; the program follows.

    Args:
        start: See `starter`.
        view: What commands see.

    Raises:
        OSError: The folder for temporary files cannot be used.
    """
    own = own_folders(view.private)
    written = _outermost((*view.write, view.private))
    everything = "--bind" if "/" in written else "--ro-bind"
    options = [*_namespaces(network=view.network), everything, "/", "/", "--dev", "/dev"]
    options += ["--bind", own[_SHARED_MEMORY], "/dev/shm", "--proc", "/proc"]
    options += _read_only(*_FIXED_BELOW_PROC)
    options += ["--tmpfs", "/run", *_read_only(*_SHOWN_BELOW_RUN)]
    for path in _TEMPORARY_FOLDERS:
        options += ["--bind", own[_TEMPORARY], path]
    options += _read_only(*filter(_is_covered, (view.folder, *_interpreter())))
    for path in written:
        # A command may have put a link in its place.
        if path != "/" and os.path.isdir(path) and os.path.realpath(path) == path:
            options += ["--bind", path, path]
    # The proxies of other policies of the session reach more.
    options += ["--tmpfs", own[PROXIES]]
    if view.proxy is not None:
        options += ["--ro-bind", view.proxy, view.proxy]
    for folder in dict.fromkeys((*view.write, view.folder)):
        if _is_below_any(folder, view.write):
            if folder not in written:
                # Another folder must not take its place either.
                options += ["--bind", folder, folder]
            options += _guarded(folder, own[_EMPTY])
    home = os.path.realpath(os.path.expanduser("~"))
    if _is_below_any(home, view.write):
        for name in _RUN_AT_LOGIN:
            options += _fixed(os.path.join(home, name))
    hidden = [path for path in view.hidden if not _holds(path, written)]
    options += _hidden(hidden)
    shown = [path for path in view.shown if _is_covered(path) or _is_below_any(path, hidden)]
    options += _read_only(*shown)
    options += _hidden_sockets(view.sockets, (*written, *_TEMPORARY_FOLDERS, "/run", *hidden))
    # All that is left inside ends with the program, and the program with its caller.
    return [*start, "--die-with-parent", *options, "--chdir", "/", "--"]


def own_folders(private: str) -> dict[str, str]:
    """Folders in that for temporary files, by name; what commands see as `/tmp` is one of them.

    Raises:
        OSError: They cannot be created.
    """
    names = (_SHARED_MEMORY, _TEMPORARY, _EMPTY, PROXIES)
    own = {name: os.path.join(private, name) for name in names}
    for path in own.values():
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.path.realpath(path) != path:
            raise OSError(errno.ELOOP, "a command put a link in place of the folder", path)
    return own


def _namespaces(*, network: bool) -> list[str]:
    options = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    return options if network else [*options, "--unshare-net"]


def _read_only(*paths: str) -> Iterator[str]:
    for path in dict.fromkeys(paths):
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)


def _interpreter() -> Iterator[str]:
    """Where the program that starts commands is installed."""
    for path in (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])):
        yield from (path, os.path.realpath(path))


def _is_covered(path: str) -> bool:
    return _is_below_any(path, (*_TEMPORARY_FOLDERS, "/run"))


def _hidden(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            yield from ("--tmpfs", path)
        elif os.path.lexists(path):
            yield from ("--ro-bind", "/dev/null", path)


def _holds(path: str, folders: Iterable[str]) -> bool:
    """Whether one of the folders is at or below a path."""
    return any(is_below(folder, path) for folder in folders)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Folders without those below another one, whose mount would hide theirs."""
    found: list[str] = []
    for path in sorted(set(folders)):
        if not _is_below_any(path, found):
            found.append(path)
    return found


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


# -- what runs later -----------------------------------------------------------------------


def must_not_appear(folders: Iterable[str]) -> list[str]:
    """Missing files with which commands could make git use another folder.

    Their creation cannot be prevented: they would be next to files that git makes and removes.
    """
    repositories = (os.path.join(folder, ".git") for folder in folders)
    found = (
        os.path.join(path, "commondir") for path in repositories if _is_real(path, stat.S_ISDIR)
    )
    return [path for path in found if not os.path.lexists(path)]


def _guarded(folder: str, empty: str) -> Iterator[str]:
    """Keep what runs later read-only in a writable folder."""
    yield from _fixed(os.path.join(folder, ".amplifier"))
    repository = os.path.join(folder, ".git")
    if not _is_real(repository, stat.S_ISDIR):
        # The file of a linked working tree names the repository: another name would be followed.
        yield from _fixed(repository)
        return
    # A mount cannot be renamed: another folder would take its place.
    yield from ("--bind", repository, repository)
    config = os.path.join(repository, "config")
    yield from _fixed(config)
    hooks = os.path.join(repository, "hooks")
    yield from _fixed(hooks) if os.path.lexists(hooks) else ("--ro-bind", empty, hooks)
    yield from _fixed(os.path.join(repository, "modules"))
    text = _text_of(config)
    for path in _named_in(text, folder):
        yield from _fixed(path)
    for_work_tree = os.path.join(repository, "config.worktree")
    if os.path.lexists(for_work_tree):
        yield from _fixed(for_work_tree)
    elif "worktreeconfig" in text.lower():
        yield from ("--ro-bind", "/dev/null", for_work_tree)


def _text_of(config: str) -> str:
    if not _is_real(config, stat.S_ISREG):
        return ""
    with open(config, "rb") as file:
        return file.read(_LARGEST_CONFIG).decode("utf-8", "replace")


def _named_in(config: str, folder: str) -> Iterator[str]:
    """Files and folders in a folder that the configuration of its repository has git run or read."""
    for key, value in _FOLLOWED.findall(config):
        start = os.path.join(folder, ".git") if key.lower() == "path" else folder
        path = os.path.normpath(os.path.join(start, value.strip().strip('"')))
        if path != folder and is_below(path, folder):
            yield path


def _fixed(path: str) -> Iterator[str]:
    # What a link leads to is not in the folder, or has a mount of its own.
    if _is_real(path, lambda mode: stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        yield from ("--ro-bind", path, path)


def _is_real(path: str, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.lstat(path).st_mode)
    except OSError:
        return False


# -- servers of the machine ----------------------------------------------------------------


def sockets_in_use() -> frozenset[Socket]:
    """The UNIX sockets with a path; one with a relative path counts in each folder it may begin in."""
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return frozenset()
    fields = (line.split(None, 7) for line in lines)
    named = [(os.fsdecode(field[7]), int(field[6])) for field in fields if len(field) == 8]
    found = {Socket(name, number) for name, number in named if name.startswith("/")}
    relative = [each for each in named if not each[0].startswith(("/", "@"))]
    for folder in _folders_in_use() if relative else ():
        found.update(Socket(os.path.join(folder, name), number) for name, number in relative)
    return frozenset(found)


def _hidden_sockets(sockets: Iterable[Socket], seen: Sequence[str]) -> Iterator[str]:
    """Hide the UNIX sockets of servers: a read-only file system does not keep anyone from connecting."""
    for path in sorted({os.path.realpath(socket.path) for socket in sockets}):
        if not _is_below_any(path, seen) and _is_real(path, stat.S_ISSOCK):
            yield from ("--ro-bind", "/dev/null", path)


def _folders_in_use() -> set[str]:
    """The working directories of processes: a relative path began in one of them."""
    folders: set[str] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # It has ended, or is another user's.
            folders.add(os.readlink(f"/proc/{name}/cwd"))
    return folders
