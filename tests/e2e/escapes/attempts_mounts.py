"""Changing what is mounted, or what the root directory is."""

import os

from catalogue import Refused, Situation, any_of, attempt, checked, libc, syscall

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_BIND, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 0x1000, 0x20, 0x4000, 0x40000
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _MOUNT_SETATTR = 428, 429, 430, 442
_AT_FDCWD = -100


def _own_namespaces() -> None:
    """A user namespace with a mount namespace, in which this process has every capability."""
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    with open("/proc/self/setgroups", "w") as file:
        file.write("deny")
    for name, id in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"0 {id} 1")


def _bind_outside(at: Situation, name: str) -> None:
    os.mkdir(name)
    checked(libc.mount(at.outside.encode(), name.encode(), None, _MS_BIND | _MS_REC, None))
    with open(f"{name}/escape-{name[-2:]}", "w") as file:
        file.write("escaped")


@attempt(34, "kernel", "bind mount the folder outside into the workspace")
def bind(at: Situation) -> None:
    _bind_outside(at, "bind-34")


@attempt(35, "kernel", "bind mount it in namespaces of its own")
def bind_in_namespaces(at: Situation) -> None:
    _own_namespaces()
    _bind_outside(at, "bind-35")


@attempt(36, "kernel", "mount the file system again, writable")
def remount(at: Situation) -> None:
    def again() -> None:
        flags = _MS_BIND | _MS_REMOUNT
        for place in ("/", at.outside):
            checked(libc.mount(None, place.encode(), None, flags, None))
        with open(f"{at.outside}/escape-36", "w") as file:
            file.write("escaped")

    def in_namespaces() -> None:
        _own_namespaces()
        checked(libc.mount(None, b"/", None, _MS_PRIVATE | _MS_REC, None))
        again()

    any_of([again, in_namespaces])


@attempt(37, "kernel", "clone the mount with the calls that use descriptors")
def by_descriptors(at: Situation) -> None:
    os.mkdir("tree-37")
    tree = syscall(_OPEN_TREE, _AT_FDCWD, at.outside.encode(), 1)
    syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, b"tree-37", 4)
    with open("tree-37/escape-37", "w") as file:
        file.write("escaped")


@attempt(38, "kernel", "open a file system of its own")
def new_file_system(at: Situation) -> None:
    def mount_it() -> None:
        syscall(_FSOPEN, b"tmpfs", 0)

    def in_namespaces() -> None:
        _own_namespaces()
        mount_it()

    any_of([mount_it, in_namespaces])


@attempt(39, "kernel", "uncover what a mount hides")
def uncover(at: Situation) -> None:
    def lazily(place: str) -> None:
        checked(libc.umount2(place.encode(), 2))

    def in_namespaces() -> None:
        _own_namespaces()
        lazily("/proc")

    places = (at.outside, "/tmp", "/run", "/dev")
    any_of([*(lambda p=p: lazily(p) for p in places), in_namespaces])


@attempt(40, "kernel", "make another folder the root, and leave it")
def other_root(at: Situation) -> None:
    os.mkdir("root-40")
    above = os.open("/", os.O_PATH)
    os.chroot("root-40")
    os.fchdir(above)
    os.chroot(".")
    os.close(os.open(f"{at.outside}/escape-40", os.O_CREAT | os.O_WRONLY))


@attempt(41, "kernel", "pivot the root in namespaces of its own")
def pivot(at: Situation) -> None:
    _own_namespaces()
    checked(libc.mount(None, b"/", None, _MS_PRIVATE | _MS_REC, None))
    os.mkdir("root-41")
    os.mkdir("root-41/old")
    checked(libc.mount(b"root-41", b"root-41", None, _MS_BIND, None))
    syscall(155, b"root-41", b"root-41/old")


@attempt(42, "kernel", "enter the mounts of a process outside")
def enter(at: Situation) -> None:
    def into(pid: int) -> None:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        own = os.stat("/proc/self/ns/mnt").st_ino
        if os.fstat(namespace).st_ino == own and not checked(libc.setns(namespace, 0)):
            # Entering one's own shows the power to enter others.
            return
        checked(libc.setns(namespace, 0))

    any_of([lambda p=p: into(p) for p in (1, *at.processes())])


@attempt(43, "kernel", "enter the namespaces of a process by its descriptor")
def enter_by_descriptor(at: Situation) -> None:
    descriptor = os.pidfd_open(at.victim)
    checked(libc.setns(descriptor, _CLONE_NEWNS))


@attempt(44, "kernel", "change the attributes of a mount")
def attributes(at: Situation) -> None:
    import ctypes

    values = (ctypes.c_uint64 * 4)(0, 1, 0, 0)  # clear: read-only
    syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", 0, ctypes.byref(values), ctypes.sizeof(values))
    raise Refused("it changes nothing") if os.access(at.outside, os.W_OK) else OSError("no")
