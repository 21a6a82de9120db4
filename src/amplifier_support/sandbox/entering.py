"""Makes the namespaces of the namespace layer, in the program that starts commands.

The launcher of commands imports this: nothing here may cost as much as starting a command.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import fcntl
import os
import stat
import struct

from amplifier_support.sandbox.system_calls import (
    drop_privileges,
    last_error,
    libc,
    permit_own_mounts,
    restrict,
    system_call,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

WRITE, READ, OWN, HIDE = b"write", b"read", b"own", b"hide"
"""Kinds of mounts: a path that commands may change or read, a folder of the session's, a hidden path."""

COVERS = ("/dev/.folder", "/dev/.file")
"""An empty folder and an empty file, which are mounted over hidden paths."""

_NEW_MOUNTS, _NEW_CGROUPS, _NEW_UTS, _NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEW_USERS, _NEW_PIDS, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_READ_ONLY, _NO_SET_ID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000
_CLONE, _FROM_DESCRIPTOR, _TO_DESCRIPTOR = 1, 0x4, 0x40
_NO_LINKS = 0x02 | 0x04
_PR_SET_PDEATHSIG = 1
_ATTEMPTS = 100
_SIOCSIFFLAGS, _UP_RUNNING = 0x8914, 0x41

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    *(("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")),
    ("ptmx", "pts/ptmx"),
)

Mount = tuple[bytes, str, str]
"""Kind, source and target; both are absolute paths with links resolved."""


def unpack(data: bytes) -> tuple[bool, str, list[Mount]]:
    """Return three fields: if the machine's network is used, the proxy's socket, and what to mount.

    They are sent as `namespaces.pack` writes them: fields that are separated by NUL.
    """
    network, proxy, *fields = data.split(b"\0")
    paths = list(map(os.fsdecode, fields))
    mounts = list(zip(fields[::3], paths[1::3], paths[2::3], strict=True))
    return bool(network), os.fsdecode(proxy), mounts


def enter(mounts: list[Mount], *, network: bool) -> None:
    """Continue in a child process that is the first one of new namespaces.

    It cannot leave them or change their mounts any more. This process waits for its end and ends in
    the same way.

    Args:
        mounts: What is mounted, in this order, in a file system that is read-only otherwise.
        network: Whether the network of the machine is used.

    Raises:
        OSError: The system refused.
    """
    is_root = _leave_namespaces(0 if network else _NEW_NETWORK)
    child = os.fork()
    if child:
        _wait_for(child)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not network:
        _start_loopback()
    mask = os.umask(0o022)
    _arrange(mounts)
    os.umask(mask)
    os.chdir("/")
    drop_privileges(files_of_others=is_root)


def probe(rules: str, filter: str, *where: str) -> None:
    """Become a program that does nothing, as commands are started.

    Args:
        rules: The number of a descriptor with a Landlock rule set.
        filter: A seccomp filter in hexadecimal digits.
        where: `inside` for namespaces of its own.
    """
    if where:
        enter([], network=False)
        permit_own_mounts(int(rules))
    restrict(int(rules), bytes.fromhex(filter), asks=not where)
    os.execv("/bin/sh", ["/bin/sh", "-c", ":"])


def _leave_namespaces(network: int) -> bool:
    """Make new namespaces; True if capabilities in them are those of root outside."""
    others = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PIDS | network
    # In a user namespace, root could not change files of other users.
    if os.geteuid() == 0 and (_unshare(others | _NEW_CGROUPS) or _unshare(others)):
        return True
    user, group = os.geteuid(), os.getegid()
    others |= _NEW_USERS
    if not _unshare(others | _NEW_CGROUPS) and not _unshare(others):
        raise last_error("unshare")
    for name, text in (
        *(
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ),
    ):
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())
    return False


def _unshare(flags: int) -> bool:
    return libc.unshare(flags) == 0


def _wait_for(child: int) -> None:
    os.closerange(0, 1 << 16)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _start_loopback() -> None:
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_RUNNING))
    any_socket.close()


# -- mounts ------------------------------------------------------------------------------


def _arrange(mounts: list[Mount]) -> None:
    """Make everything read-only but for what is mounted over it."""
    _mount("", "/", "", _RECURSIVE | _PRIVATE)
    # Taken first: what is read-only or hidden from now on is neither in these.
    trees = [_take(kind, source) for kind, source, _ in mounts]
    devices = [(name, _tree(f"/dev/{name}")) for name in _DEVICES]
    everything = 0 if any(kind == WRITE and path == "/" for kind, path, _ in mounts) else _READ_ONLY
    _restrict("/", everything | _NO_SET_ID | _NO_DEVICES, recursive=True)
    safe = _NO_SET_ID | _NO_DEVICES
    _mount("proc", "/proc", "proc", _READ_ONLY | safe | _NO_PROGRAMS)
    _make_devices(devices)
    if os.path.isdir("/run"):
        _mount("tmpfs", "/run", "tmpfs", safe, "mode=755")
    for (kind, _, target), tree in zip(mounts, trees, strict=True):
        if target == "/":
            continue
        if kind == HIDE:
            _hide(target, has_places=any(_is_in(path, target) for _, _, path in mounts))
        elif tree >= 0:
            _attach(tree, target)
        elif kind == OWN:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), target)
    if os.path.isdir("/run"):
        _restrict("/run", _READ_ONLY)


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def _make_devices(devices: list[tuple[str, int]]) -> None:
    _mount("tmpfs", "/dev", "tmpfs", _NO_SET_ID | _NO_PROGRAMS, "mode=755")
    for name, tree in devices:
        if tree >= 0:
            # Their mode and owner are those of the machine.
            _restrict("", _READ_ONLY | _NO_SET_ID | _NO_PROGRAMS, folder=tree)
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
            _attach(tree, f"/dev/{name}")
    for name, target in _LINKS:
        os.symlink(target, f"/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    options = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", "/dev/pts", "devpts", _NO_SET_ID | _NO_PROGRAMS, options)
    folder, file = COVERS
    os.mkdir(folder, 0o555)
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o444))
    _restrict("/dev", _READ_ONLY)


def _take(kind: bytes, source: str) -> int:
    """A copy of a mount, with what is mounted below it; -1 if it is missing.

    A link is taken only if it is read: mounted over itself, it cannot be removed.
    """
    if kind == HIDE or source == "/":
        return -1
    tree = _tree(source, os.O_NOFOLLOW if kind == READ else 0)
    if tree >= 0:
        only = _READ_ONLY if kind == READ else 0
        _restrict("", only | _NO_SET_ID | _NO_DEVICES, folder=tree, recursive=True)
    return tree


def _tree(path: str, flags: int = 0) -> int:
    place = _open(path, flags)
    if place < 0:
        return -1
    how = _CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE
    tree = system_call(_OPEN_TREE, place, b"", how)
    os.close(place)
    return tree


def _hide(path: str, *, has_places: bool) -> None:
    """Mount something empty over a path, if it exists; with `has_places`, what can be mounted in."""
    flags = _NO_SET_ID | _NO_DEVICES | _NO_PROGRAMS
    for attempt in range(_ATTEMPTS):
        place = _open(path)
        if place < 0:
            return
        try:
            if has_places:
                return _mount("tmpfs", f"/proc/self/fd/{place}", "tmpfs", flags, "mode=755")
            is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
            return _move(_tree(COVERS[not is_folder]), place)
        except OSError as error:
            _raise_unless_removed(error, attempt)
        finally:
            os.close(place)


def _attach(tree: int, path: str) -> None:
    """Mount a copy at a path, unless that is missing; only a link is mounted at a link. Closes it."""
    mode = os.fstat(tree).st_mode
    for attempt in range(_ATTEMPTS):
        place = _open(path, os.O_NOFOLLOW if stat.S_ISLNK(mode) else 0)
        if place < 0:
            place = _make(path, is_folder=stat.S_ISDIR(mode))
        if place < 0:
            break
        try:
            return _move(tree, place)
        except OSError as error:
            _raise_unless_removed(error, attempt)
        finally:
            os.close(place)
    os.close(tree)


def _move(tree: int, place: int) -> None:
    system_call(_MOVE_MOUNT, tree, b"", place, b"", _FROM_DESCRIPTOR | _TO_DESCRIPTOR)
    os.close(tree)


def _raise_unless_removed(error: OSError, attempt: int) -> None:
    # It may have been removed since it was opened, and made again: sockets come and go.
    if error.errno != errno.ENOENT or attempt == _ATTEMPTS - 1:
        raise error


def _make(path: str, *, is_folder: bool) -> int:
    """Make the place for a mount, and open it; -1 if it cannot be made, or there is a link in the way."""
    parent, name = os.path.split(path)
    above = _open(parent)
    if above < 0:
        above = _make(parent, is_folder=True)
    if above < 0:
        return -1
    try:
        if is_folder:
            os.mkdir(name, 0o755, dir_fd=above)
        else:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(name, flags, 0o644, dir_fd=above))
    except FileExistsError:
        pass  # Another sandbox of the session may have made it just now.
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES):
            return -1
        raise
    finally:
        os.close(above)
    return _open(path)


def _open(path: str, flags: int = 0) -> int:
    """A descriptor of a path; -1 if it is missing, out of reach, or if a part of it is a link.

    With `os.O_NOFOLLOW`, its last part may be a link, which is opened itself.
    """
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _NO_LINKS)
    number = ctypes.c_size_t(len(how))
    try:
        return system_call(_OPENAT2, _AT_FDCWD, os.fsencode(path), how, number)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            return -1
        raise


def _restrict(path: str, flags: int, *, folder: int = _AT_FDCWD, recursive: bool = False) -> None:
    """Set the flags of a mount."""
    how = (0 if path else _AT_EMPTY_PATH) | (_AT_RECURSIVE if recursive else 0)
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    number = ctypes.c_size_t(len(attributes))
    system_call(_MOUNT_SETATTR, folder, os.fsencode(path), how, attributes, number)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (text.encode() or None for text in (source, target, kind))
    if libc.mount(*texts, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise last_error(target)
