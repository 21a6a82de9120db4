"""Disks that take no more: full, read-only, or with a limit on the size of files.

    with small_disk(folder, 64 * 1024):      # a file system of this size, mounted on `folder`
        ...
    with file_size_limit(1000):              # writes of this process fail beyond it (EFBIG)
        ...

`small_disk` needs to be root or to have user namespaces; `can_mount()` finds out, for `skipif`. Fill what is
left of it with `fill(folder)`; `remount_read_only(folder)` makes it read-only. Linux only.
"""

import contextlib
import ctypes
import functools
import os
import resource
import tempfile
from collections.abc import Generator
from pathlib import Path

_MS_RDONLY, _MS_REMOUNT, _MNT_DETACH = 1, 32, 2


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def can_mount() -> bool:
    """Whether this process may mount file systems."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder), 4096):
                return True
        except (OSError, AttributeError):
            return False


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Generator[Path]:
    """A file system of `size` bytes (rounded up to pages) on `folder`, as long as the block runs."""
    path = os.fsencode(folder)
    _call("mount", b"small", path, b"tmpfs", 0, f"size={size},mode=0700".encode())
    try:
        yield folder
    finally:
        _call("umount2", path, _MNT_DETACH)


def remount_read_only(folder: Path) -> None:
    """Make a small disk read-only."""
    _call("mount", b"small", os.fsencode(folder), b"tmpfs", _MS_REMOUNT | _MS_RDONLY, None)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Take all but `leave` bytes of a small disk; returns the file that takes them."""
    file = folder / "filling"
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    os.truncate(file, max(0, file.stat().st_size - leave))
    return file


@contextlib.contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """Let this process write files of `size` bytes at most."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
