"""The namespace layer: the mounts that commands see, which their launcher makes (`entering`).

Inside, the launcher and its commands see the file system read-only but for what they may change, a
`/tmp`, `/dev/shm` and `/run` of their own, only the processes they started, and a network with
nothing but its own loopback interface. The kernel layer applies there as well.

A writable folder may hold what runs later, outside of the sandbox: `.amplifier`, settings of editors, and
the hooks and the configuration of its git repository. These stay read-only.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from amplifier_support.files import folder_at, is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.run_later import IN_HOMES, IN_PROJECTS
from amplifier_support.sandbox.available import mount_points
from amplifier_support.sandbox.entering import HIDE, OWN, READ, WRITE, Mount

_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp")
_OWN_FOLDERS = (*_TEMPORARY_FOLDERS, "/run", "/dev/shm")
_SHOWN_BELOW_RUN = ("/run/current-system", "/run/opengl-driver", "/run/systemd/resolve")
_LARGEST_CONFIG = 1024 * 1024
_MAX_LINKS = 40
_FOLLOWED = re.compile(
    r"(?:^|\])\s*(hookspath|fsmonitor|path)\s*=([^#;\n]+)", re.IGNORECASE | re.MULTILINE
)

_SHARED_MEMORY, _TEMPORARY, _EMPTY, PROXIES = "shm", "tmp", "empty", "proxies"


class View(NamedTuple):
    """The file system as commands see it, as absolute paths with links resolved.

    Attributes:
        folder: The working directory.
        write: Folders they may change.
        needed: What they need to start, which a folder of their own may hide.
        shown: Folders they may read although others hide them.
        hidden: Files and folders they do not see.
        fixed: Files and folders they may not change, also in a writable folder.
        private: The folder for their temporary files.
        network: Whether they use the network of the machine.
        proxy: The socket of their proxy; empty if they have none.
    """

    folder: str
    write: tuple[str, ...]
    needed: frozenset[str]
    shown: tuple[str, ...]
    hidden: tuple[str, ...]
    fixed: tuple[str, ...]
    private: str
    network: bool
    proxy: str = ""


def pack(view: View) -> bytes:
    """The view as `entering.unpack` reads it.

    Raises:
        OSError: The folder for temporary files cannot be used.
    """
    fields = ["network" if view.network else "", view.proxy]
    fields += [field for kind, *paths in _mounts(view) for field in (kind.decode(), *paths)]
    return b"\0".join(map(os.fsencode, fields))


def _mounts(view: View) -> Iterator[Mount]:
    """Yield the mounts in this order."""
    own = own_folders(view.private)
    written = _outermost((*view.write, view.private))
    yield OWN, own[_SHARED_MEMORY], "/dev/shm"
    for path in _temporary_folders():
        yield OWN, own[_TEMPORARY], path
    covered = filter(is_covered, (view.folder, *interpreter(), *sorted(view.needed)))
    readable = dict.fromkeys((*_SHOWN_BELOW_RUN, *covered))
    for path in readable:
        yield READ, path, path
    for path in written:
        yield WRITE, path, path
    # The proxies of other policies of the session reach more.
    hidden = [own[PROXIES], *filter(os.path.lexists, view.hidden)]
    hidden = [path for path in hidden if not _holds(path, written)]
    yield from _inside(view, written, hidden, own[_EMPTY])
    for path in hidden:
        if not _is_below_any(path, written):
            yield HIDE, "", path
    for path in view.shown:
        if is_covered(path) or _is_below_any(path, hidden):
            yield READ, path, path
    for path in _sockets_in_use((*written, *hidden)):
        # In the commands' own `/tmp` a server of theirs may have the same path.
        if not is_covered(path) or _is_below_any(path, (*readable, *view.shown)):
            yield HIDE, "", path


def _inside(
    view: View, written: Sequence[str], hidden: Iterable[str], empty: str
) -> Iterator[Mount]:
    """Yield the read-only and hidden parts of writable folders."""
    mounts: dict[str, Mount] = {}
    for folder in dict.fromkeys((*view.write, view.folder)):
        if _is_below_any(folder, view.write):
            mounts |= {mount[2]: mount for mount in _guarded(folder, view.write, empty)}
    home = os.path.realpath(os.path.expanduser("~"))
    fixed = [*view.fixed, *(os.path.join(home, name) for name in IN_HOMES)]
    mounts |= {mount[2]: mount for path in fixed for mount in _fixed(path)}
    # What the policy names may be changed; and another folder must not take its place.
    mounts |= {path: (WRITE, path, path) for path in view.write}
    mounts.setdefault(view.folder, (WRITE, view.folder, view.folder))
    mounts |= {path: (HIDE, "", path) for path in hidden}
    for path in list(mounts):
        # A mount cannot be renamed, but a folder above it can.
        mounts |= {
            above: (WRITE, above, above) for above in _above(path, written) if above not in mounts
        }
    for path in sorted(mounts):
        if _is_below_any(path, written) and path not in written:
            yield mounts[path]


def _above(path: str, folders: Iterable[str]) -> Iterator[str]:
    """The folders between one of `folders` and a path."""
    above = os.path.dirname(path)
    while (
        above != os.path.dirname(above) and _is_below_any(above, folders) and above not in folders
    ):
        yield above
        above = os.path.dirname(above)


def own_folders(private: str) -> dict[str, str]:
    """Folders in that for temporary files, by name; what commands see as `/tmp` is one of them.

    Raises:
        OSError: They cannot be created.
    """
    names = (_SHARED_MEMORY, _TEMPORARY, _EMPTY, PROXIES)
    own = {name: os.path.join(private, name) for name in names}
    for path in (private, *own.values()):
        if path != private:
            _make(path, lambda name, folder: os.mkdir(name, 0o700, dir_fd=folder))
        if os.path.realpath(path) != path:
            raise OSError(errno.ELOOP, "a command put a link in place of the folder", path)
    return own


def _make(path: str, make: Callable[[str, int | None], object]) -> None:
    """Make something, unless it is there already.

    Raises:
        OSError: It cannot be made, or a link leads to its folder.
    """
    folder, name = os.path.split(path)
    with contextlib.suppress(FileExistsError), folder_at(folder) as descriptor:
        make(name, descriptor)


def paths_needed(argv: Sequence[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Return the files a command needs to start and its `/tmp` hides: its program, what that runs,
    those on PATH.
    """
    entries = filter(os.path.isabs, environment.get("PATH", "").split(os.pathsep))
    # After `-c` comes text of the model, which must not choose what is visible.
    named = (word for before, word in zip(("", *argv), argv, strict=False) if before != "-c")
    files = (path for path in named if os.path.isabs(path) and os.path.isfile(path))
    return folders_needed((*(os.path.join(entry, "any") for entry in entries), *files))


def folders_needed(files: Iterable[str]) -> frozenset[str]:
    """The folders of files that a folder of the namespaces' own hides."""
    places = (place for path in files for place in (path, os.path.realpath(path)))
    return frozenset(map(_whole, filter(is_covered, places)))


def _whole(path: str) -> str:
    """The folder of a program or a script, with the one above `bin`; what is in `/tmp` itself is alone."""
    for _ in range(2 if os.path.basename(os.path.dirname(path)) == "bin" else 1):
        above = os.path.dirname(path)
        if above in (*_OWN_FOLDERS, *_temporary_folders()):
            break
        path = above
    return path


def interpreter() -> Iterator[str]:
    """Yield the installation folders of the program that starts commands."""
    for path in (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])):
        yield from (path, os.path.realpath(path))


def is_covered(path: str) -> bool:
    """Return True if a folder of the namespaces' own is in the place of a path, or of a folder above it."""
    return _is_below_any(path, (*_OWN_FOLDERS, *_temporary_folders()))


def _temporary_folders() -> list[str]:
    return [path for path in map(os.path.realpath, _TEMPORARY_FOLDERS) if os.path.isdir(path)]


def _holds(path: str, folders: Iterable[str]) -> bool:
    """Return True if one of the folders is at or below a path."""
    return any(is_below(folder, path) for folder in folders)


def _outermost(folders: Iterable[str]) -> list[str]:
    """Folders without those below another one, whose mount would hide theirs."""
    outermost: list[str] = []
    for path in sorted(set(folders)):
        if not _is_below_any(path, outermost):
            outermost.append(path)
    return outermost


def _is_below_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


# -- what runs later ---------------------------------------------------------------------


def must_not_appear(folders: Iterable[str]) -> list[str]:
    """Missing files with which commands could make git use another folder.

    Their creation cannot be prevented: they would be next to files that git makes and removes.
    """
    repositories = (os.path.join(folder, ".git") for folder in folders)
    files = (
        os.path.join(path, "commondir") for path in repositories if _is_real(path, stat.S_ISDIR)
    )
    return [path for path in files if not os.path.lexists(path)]


def missing_names(folders: Iterable[str]) -> list[str]:
    """Return files that run later and do not exist yet in writable folders; commands can create
    them.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    paths = [os.path.join(home, name) for name in IN_HOMES if _is_below_any(home, folders)]
    for folder in folders:
        paths += [os.path.join(folder, name) for name in IN_PROJECTS]
        paths += _named_by_git(folder)
    return [path for path in dict.fromkeys(paths) if not os.path.lexists(path)]


def _guarded(folder: str, write: Sequence[str], empty: str) -> Iterator[Mount]:
    """Keep what runs later read-only in a writable folder."""
    for name in IN_PROJECTS:
        if name != ".git":
            yield from _fixed(os.path.join(folder, name))
    for path in _named_by_git(folder):
        yield from _fixed(path)
    for path in _repositories(folder):
        if not _is_real(path, stat.S_ISDIR):
            yield from _fixed(path)
        elif _is_below_any(path, write):
            yield from _guarded_repository(path, empty)


def _repositories(folder: str) -> Iterator[str]:
    """The repository of a folder, and the links and files with which git finds it."""
    *links, repository = _on_the_way(os.path.join(folder, ".git"))
    yield from links
    if os.path.isfile(repository):
        yield repository
        *links, repository = _named_by(repository, "gitdir:")
        yield from links
    if not os.path.isdir(repository):
        # Git also works in a repository without files of its own.
        repository = folder if os.path.lexists(os.path.join(folder, "HEAD")) else ""
    common = os.path.join(repository, "commondir")
    if repository and os.path.isfile(common):
        yield common
        yield from _named_by(common)
    elif repository:
        yield repository


def _named_by(file: str, key: str = "") -> list[str]:
    """Return the targets of a file of git, as `_on_the_way`."""
    name = _read_text(file).removeprefix(key).strip()
    return _on_the_way(os.path.join(os.path.dirname(file), name))


def _guarded_repository(repository: str, empty: str) -> Iterator[Mount]:
    """Keep what git runs and follows read-only in a repository."""
    yield WRITE, repository, repository
    config = os.path.join(repository, "config")
    yield from _fixed(config)
    hooks = os.path.join(repository, "hooks")
    if os.path.lexists(hooks):
        yield from _fixed(hooks)
    else:
        with contextlib.suppress(OSError):
            _make(hooks, lambda name, folder: os.mkdir(name, dir_fd=folder))
        yield READ, empty, hooks
    for path in glob.glob(os.path.join(glob.escape(hooks), "*")):
        # A hook may be a link to a script in the working tree.
        if os.path.islink(path):
            yield from _fixed(path)
    yield from _fixed(os.path.join(repository, "modules"))
    text = _read_text(config)
    linked = glob.glob(os.path.join(glob.escape(repository), "worktrees", "*"))
    for path in (repository, *linked):
        yield from _fixed(os.path.join(path, "commondir"))
        for_work_tree = os.path.join(path, "config.worktree")
        if not os.path.lexists(for_work_tree) and "worktreeconfig" in text.lower():
            with contextlib.suppress(OSError):
                _make(for_work_tree, _make_file)
        yield from _fixed(for_work_tree)


def _make_file(name: str, folder: int | None) -> None:
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder))


def _read_text(file: str) -> str:
    """The text of a small file of git; empty if it is no file, or cannot be read."""
    if not os.path.isfile(file):
        return ""
    try:
        # A command may put a pipe in its place, for which this would wait.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            return opened.read(_LARGEST_CONFIG).decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""


def _named_by_git(folder: str) -> Iterator[str]:
    """Files and folders in a folder that the configuration of git has it run or read there."""
    places = [path for path in _repositories(folder) if os.path.isdir(path)]
    home = os.path.expanduser("~")
    own = [os.path.join(home, name) for name in (".gitconfig", ".config/git/config")]
    for config in (*own, *(os.path.join(path, "config") for path in places)):
        for key, value in _FOLLOWED.findall(_read_text(config)):
            start = os.path.dirname(config) if key.lower() == "path" else folder
            name = os.path.expanduser(value.strip().strip('"'))
            path = os.path.normpath(os.path.join(start, name))
            if path != folder and is_below(path, folder):
                yield path


def _fixed(path: str) -> Iterator[Mount]:
    """Keep a file or folder read-only, and the links that lead to it in their place."""
    *links, path = _on_the_way(path)
    yield from ((READ, link, link) for link in links)
    if _is_real(path, lambda mode: stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        yield READ, path, path


def _on_the_way(path: str) -> list[str]:
    """The links that an absolute path leads through, each in its real folder, then where it ends."""
    links: list[str] = []
    real, ahead = "", path.split("/")[::-1]
    while ahead:
        name = ahead.pop()
        place = os.path.dirname(real) if name == ".." else os.path.join(real or "/", name)
        if os.path.islink(place) and len(links) < _MAX_LINKS:
            links.append(place)
            target = os.readlink(place)
            real = "" if os.path.isabs(target) else real
            ahead += target.split("/")[::-1]
        elif name not in ("", "."):
            real = place
    return [*links, real or "/"]


def _is_real(path: str, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(os.lstat(path).st_mode)
    except OSError:
        return False


# -- servers of the machine --------------------------------------------------------------


def _sockets_in_use(seen: Sequence[str]) -> Iterator[str]:
    """The UNIX sockets of servers: a read-only file system does not keep anyone from connecting.

    One with a relative path is looked for in each folder that it may begin in. Those in folders that
    commands may change are left out, and so is what they do not see anyway.
    """
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return
    fields = (line.split(None, 7) for line in lines)
    names = {os.fsdecode(field[7]) for field in fields if len(field) == 8}
    sockets = {name for name in names if name.startswith("/")}
    relative = [name for name in names if not name.startswith(("/", "@"))]
    for folder in _folders_in_use() if relative else ():
        sockets.update(os.path.join(folder, name) for name in relative)
    # A server in another network, such as that outside of a container, is not listed.
    sockets.update(mount.path for mount in mount_points() if mount.root != "/")
    for path in sorted(set(map(os.path.realpath, sockets))):
        if not _is_below_any(path, seen) and _is_real(path, stat.S_ISSOCK):
            yield path


def _folders_in_use() -> set[str]:
    """The working directories of processes: a relative path began in one of them."""
    folders: set[str] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # It has ended, or is another user's.
            folders.add(os.readlink(f"/proc/{name}/cwd"))
    return folders
