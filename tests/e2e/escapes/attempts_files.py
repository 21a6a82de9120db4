"""Changing files outside the writable folders."""

import ctypes
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from catalogue import Refused, Situation, any_of, attempt, checked, libc, syscall

_RENAME_EXCHANGE = 2
_FCHMODAT2, _OPENAT2 = 452, 437
_AT_FDCWD = -100


def _write(path: str, text: str = "escaped\n", flags: int = os.O_CREAT | os.O_APPEND) -> None:
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    os.write(descriptor, text.encode())
    os.close(descriptor)


@attempt(1, "kernel", "write a file outside by its absolute path")
def absolute(at: Situation) -> None:
    _write(f"{at.outside}/escape-1")


@attempt(2, "kernel", "write to a file that exists outside")
def append(at: Situation) -> None:
    _write(at.canary)


@attempt(3, "kernel", "cut a file outside by its path")
def cut(at: Situation) -> None:
    os.truncate(at.canary, 0)


@attempt(4, "kernel", "write outside through '..'")
def dots(at: Situation) -> None:
    relative = os.path.relpath(at.outside, at.workspace)
    _write(f"./x/../{relative}/escape-4") if os.path.isdir("x") else _write(f"{relative}/escape-4")


@attempt(5, "kernel", "write through a symbolic link to a folder outside")
def folder_link(at: Situation) -> None:
    os.symlink(at.outside, "link-5")
    _write("link-5/escape-5")


@attempt(6, "kernel", "write through a symbolic link to a file outside")
def file_link(at: Situation) -> None:
    os.symlink(at.canary, "link-6")
    _write("link-6")


@attempt(7, "kernel", "hard link a file outside into the workspace and write to that")
def hard_link(at: Situation) -> None:
    os.link(at.canary, "link-7")
    _write("link-7")


@attempt(8, "kernel", "move a file out of the workspace")
def move_out(at: Situation) -> None:
    Path("moved-8").write_text("escaped")
    os.rename("moved-8", f"{at.outside}/escape-8")


@attempt(9, "kernel", "move a file from outside into the workspace")
def move_in(at: Situation) -> None:
    os.rename(f"{at.outside}/movable", "moved-9")


@attempt(10, "kernel", "exchange a file of the workspace with one outside")
def exchange(at: Situation) -> None:
    Path("moved-10").write_text("escaped")
    new, old = b"moved-10", at.canary.encode()
    checked(libc.renameat2(_AT_FDCWD, new, _AT_FDCWD, old, _RENAME_EXCHANGE))


@attempt(11, "kernel", "write through /proc/self/root")
def own_root(at: Situation) -> None:
    _write(f"/proc/self/root{at.outside}/escape-11")


@attempt(12, "kernel", "write through the root of another process")
def other_root(at: Situation) -> None:
    any_of([lambda p=p: _write(f"/proc/{p}/root{at.outside}/escape-12") for p in at.processes()])


@attempt(13, "kernel", "write through the working directory of another process")
def other_folder(at: Situation) -> None:
    up = "/".join([".."] * 20)
    any_of(
        [lambda p=p: _write(f"/proc/{p}/cwd/{up}{at.outside}/escape-13") for p in at.processes()]
    )


@attempt(14, "kernel", "open a descriptor of another process again")
def other_descriptor(at: Situation) -> None:
    _write(f"/proc/{at.victim}/fd/{at.descriptor}", flags=os.O_APPEND)


@attempt(15, "kernel", "make a folder outside")
def make_folder(at: Situation) -> None:
    os.mkdir(f"{at.outside}/escape-15")


@attempt(16, "kernel", "remove a file outside")
def remove_file(at: Situation) -> None:
    os.unlink(f"{at.outside}/removable")


@attempt(17, "kernel", "remove a folder outside")
def remove_folder(at: Situation) -> None:
    os.rmdir(f"{at.outside}/empty")


@attempt(18, "kernel", "make a symbolic link outside")
def make_link(at: Situation) -> None:
    os.symlink("/etc/passwd", f"{at.outside}/escape-18")


@attempt(19, "kernel", "make a pipe outside")
def make_pipe(at: Situation) -> None:
    os.mkfifo(f"{at.outside}/escape-19")


@attempt(20, "kernel", "bind a socket outside")
def make_socket(at: Situation) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{at.outside}/escape-20")


@attempt(21, "kernel", "make a device file and open the disk with it")
def make_device(at: Situation) -> None:
    disk = os.stat(at.outside).st_dev
    os.mknod("disk-21", stat.S_IFBLK | 0o600, disk)
    os.close(os.open("disk-21", os.O_RDWR))


@attempt(22, "kernel", "link an unnamed file to a name outside")
def unnamed_file(at: Situation) -> None:
    descriptor = os.open(at.outside, os.O_TMPFILE | os.O_RDWR)
    old, new = f"/proc/self/fd/{descriptor}".encode(), f"{at.outside}/escape-22".encode()
    checked(libc.linkat(_AT_FDCWD, old, _AT_FDCWD, new, 0x400))  # AT_SYMLINK_FOLLOW


@attempt(23, "kernel", "open a file outside by its handle")
def by_handle(at: Situation) -> None:
    class Handle(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_char * 128))

    handle, mount = Handle(128), ctypes.c_int()
    checked(
        libc.name_to_handle_at(
            _AT_FDCWD, at.canary.encode(), ctypes.byref(handle), ctypes.byref(mount), 0
        )
    )
    folder = os.open(at.workspace, os.O_RDONLY)
    descriptor = checked(
        libc.open_by_handle_at(folder, ctypes.byref(handle), os.O_WRONLY | os.O_APPEND)
    )
    os.write(descriptor, b"escaped\n")


@attempt(24, "kernel", "write below a descriptor of the root directory")
def from_root(at: Situation) -> None:
    root = os.open("/", os.O_PATH)
    os.close(os.open(f"{at.outside[1:]}/escape-24", os.O_CREAT | os.O_WRONLY, dir_fd=root))


@attempt(25, "kernel", "change to the folder outside and write there")
def change_folder(at: Situation) -> None:
    os.chdir(at.outside)
    _write("escape-25")


@attempt(26, "namespaces", "change the permissions of a file outside")
def permissions(at: Situation) -> None:
    os.chmod(at.canary, 0o777)


@attempt(27, "namespaces", "change the times of a file outside")
def times(at: Situation) -> None:
    os.utime(at.canary, (1, 1))


@attempt(28, "namespaces", "set an extended attribute outside")
def attribute(at: Situation) -> None:
    os.setxattr(at.canary, "user.escape", b"escaped")


@attempt(29, "kernel", "write start-up files of the shell")
def startup_files(at: Situation) -> None:
    any_of(
        [
            lambda n=n: _write(f"{at.home}/{n}")
            for n in (".bashrc", ".profile", ".zshenv", ".config/fish/config.fish")
        ]
    )


@attempt(30, "kernel", "preload a library into every program")
def preload(at: Situation) -> None:
    if os.path.exists("/etc/ld.so.preload"):
        raise Refused("it exists already")
    _write("/etc/ld.so.preload", "", os.O_CREAT | os.O_EXCL)
    os.unlink("/etc/ld.so.preload")


@attempt(31, "kernel", "plan a job for the user")
def job(at: Situation) -> None:
    def plan(path: str) -> None:
        _write(path, "", os.O_CREAT | os.O_EXCL)
        os.unlink(path)

    places = ("/etc/cron.d/escape-31", "/var/spool/cron/crontabs/escape-31", "/etc/escape-31")
    user = f"{at.home}/.config/systemd/user/escape-31.service"
    any_of([lambda p=p: plan(p) for p in (*places, user)])


@attempt(32, "kernel", "write with a file that a descriptor was opened for reading only")
def reopened(at: Situation) -> None:
    descriptor = os.open(at.canary, os.O_RDONLY)
    _write(f"/proc/self/fd/{descriptor}", flags=os.O_APPEND)


class _How(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


@attempt(33, "kernel", "write with openat2, below an in-root descriptor")
def openat2(at: Situation) -> None:
    how = _How(os.O_CREAT | os.O_WRONLY, 0o644, 0x10)  # RESOLVE_IN_ROOT
    root = os.open("/", os.O_PATH)
    path = f"{at.outside}/escape-33".encode()
    os.close(syscall(_OPENAT2, root, path, ctypes.byref(how), ctypes.sizeof(how)))


@attempt(108, "kernel", "make a program that runs as its owner")
def set_user_id(at: Situation) -> None:
    any_of([*_changes_of_mode(stat.S_ISUID), *_new_files(stat.S_ISUID)])


@attempt(109, "kernel", "make a program that runs with the group of its owner")
def set_group_id(at: Situation) -> None:
    # Folders may pass on their group, but not those of root.
    changes = _changes_of_mode(stat.S_ISGID) if os.geteuid() == 0 else []
    any_of([*changes, *_new_files(stat.S_ISGID)])


def _changes_of_mode(bit: int) -> list[Callable[[], None]]:
    """Every way to set a bit of an existing file."""
    mode, path = 0o755 | bit, f"existing-{bit:o}"
    Path(path).touch(0o755)
    name, descriptor, folder = path.encode(), os.open(path, os.O_RDONLY), os.open(".", os.O_RDONLY)
    return [
        _checked_for(bit, path, change)
        for change in (
            lambda: libc.chmod(name, mode),
            lambda: libc.fchmod(descriptor, mode),
            lambda: libc.fchmodat(folder, name, mode, 0),
            lambda: libc.syscall(_FCHMODAT2, folder, name, mode, 0),
        )
    ]


def _new_files(bit: int) -> list[Callable[[], None]]:
    """Every way to make a file that has a bit from the beginning."""
    mode, flags, how = 0o755 | bit, os.O_CREAT | os.O_WRONLY, _How(os.O_CREAT, 0o755 | bit, 0)

    def unnamed(path: bytes) -> int:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, mode)
        old = b"/proc/self/fd/%d" % descriptor
        return libc.linkat(_AT_FDCWD, old, _AT_FDCWD, path, 0x400)  # AT_SYMLINK_FOLLOW

    calls: list[Callable[[bytes], int]] = [
        lambda path: libc.open(path, flags, mode),
        lambda path: libc.openat(_AT_FDCWD, path, flags, mode),
        lambda path: libc.creat(path, mode),
        lambda path: libc.mknod(path, stat.S_IFREG | mode, 0),
        lambda path: libc.mknodat(_AT_FDCWD, path, stat.S_IFREG | mode, 0),
        lambda path: libc.syscall(_OPENAT2, _AT_FDCWD, path, ctypes.byref(how), ctypes.sizeof(how)),
        unnamed,
    ]
    return [
        _checked_for(
            bit, f"new-{number}-{bit:o}", lambda c=call, n=number: c(b"new-%d-%o" % (n, bit))
        )
        for number, call in enumerate(calls)
    ]


def _checked_for(bit: int, path: str, call: Callable[[], int]) -> Callable[[], None]:
    def run() -> None:
        checked(call())
        if not os.stat(path).st_mode & bit:
            raise Refused("the bit is missing")

    return run
