"""Open files and folders below an open folder, never through a link, even one that appears meanwhile.

Paths are relative and their links resolved beforehand; a part that has become a link is refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator

_BY_DESCRIPTOR = os.open in os.supports_dir_fd
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# With O_PATH a folder that may be entered but not listed can still be walked through.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | NOFOLLOW


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or inside it; links are not followed."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def open_below(folder: int, path: str) -> int:
    """A descriptor of a regular file, for reading.

    Args:
        folder: Descriptor of the folder.
        path: The file's path below it.

    Raises:
        OSError: A part of the path is a link or missing, or the file is not a regular one.
    """
    parent, _, name = path.rpartition("/")
    with folder_below(folder, parent) as opened:
        descriptor = os.open(name, _FILE, dir_fd=opened)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


@contextlib.contextmanager
def folder_below(folder: int, path: str, *, create: bool = False) -> Generator[int]:
    """A descriptor of a folder; `folder` itself if the path is empty.

    Args:
        folder: Descriptor of the folder to start from.
        path: The path below it.
        create: Create missing folders on the way.

    Raises:
        OSError: A part of the path is a link or, unless it is created, missing.
    """
    with contextlib.ExitStack() as opened:
        for name in filter(None, path.split("/")):
            if name in (".", ".."):
                raise OSError(errno.EINVAL, "it is not a path below a folder", path)
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            folder = os.open(name, FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        yield folder


@contextlib.contextmanager
def folder_at(path: str, *, create: bool = False) -> Generator[int | None]:
    """A descriptor of the folder at an absolute path without links; None where there are none.

    Args:
        path: Its path.
        create: Create missing folders on the way.

    Raises:
        OSError: A part of the path is a link or, unless it is created, missing.
    """
    if not _BY_DESCRIPTOR:
        if create:
            os.makedirs(path, exist_ok=True)
        yield None
        return
    top = os.open("/", FOLDER)
    try:
        with folder_below(top, path, create=create) as folder:
            yield folder
    finally:
        os.close(top)


def open_inside(root: str, path: str) -> int:
    """A descriptor of the regular file `path`, for reading; links that stay inside `root` are followed.

    Args:
        root: A folder.
        path: Absolute, or relative to `root`.

    Raises:
        ValueError: It is outside.
        OSError: It cannot be opened.
    """
    real_root = os.path.realpath(root)
    real = os.path.realpath(os.path.join(real_root, path))
    if os.path.commonpath([real, real_root]) != real_root:
        raise ValueError(f"{path} is outside {root}")
    if not _BY_DESCRIPTOR:
        return os.open(real, _FILE)
    folder = os.open(real_root, FOLDER)
    try:
        return open_below(folder, os.path.relpath(real, real_root))
    finally:
        os.close(folder)
