"""Reads and writes whole files at a guarded location."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator

from amplifier_modules._shared.files.roots import Location
from amplifier_support.atomic_write import write_atomically


class FileProblem(Exception):
    """The operation does not make sense on what is there; the message says why."""


class NotAFile(FileProblem):
    """What is there is a folder, a device, a pipe."""


class FileTooLarge(FileProblem):
    """The file is larger than the operation takes at once."""


_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def open_guarded(location: Location) -> Generator[tuple[int, int]]:
    """Open the file at `location`: descriptor and size in bytes.

    Raises:
        NotAFile: Something else is there; it is not touched.
        OSError: It cannot be opened.
    """
    # Looked at first, because opening a device may already do something.
    _require_file(location.stat())
    # Not blocking, so that a pipe put there meanwhile cannot hold the session up.
    descriptor = location.open(_READ | _BINARY)
    try:
        status = os.fstat(descriptor)
        _require_file(status)
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def read_whole(location: Location, limit: int) -> bytes:
    """The bytes of a file of at most `limit` bytes. Raises NotAFile, FileTooLarge, OSError."""
    with open_guarded(location) as (descriptor, size):
        if size > limit:
            raise FileTooLarge(f"it has {size} bytes, more than {limit}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()


def exists(location: Location) -> bool:
    """Whether a file is there. Raises NotAFile when it is something else."""
    try:
        _require_file(location.stat())
    except FileNotFoundError:
        return False
    return True


def write_whole(
    location: Location, data: bytes, mode: int | None = None, *, staging: str | None = None
) -> None:
    """Replace or create the file at `location` atomically.

    Mode and, where allowed, owner of an old file are kept. The bytes reach the disk when the
    system writes them, as with any program's files.

    Args:
        location: A place in a folder that is there.
        data: All of the new content.
        mode: Permissions to give it in place of those of the old file, or the usual ones.
        staging: See `write_atomically`.

    Raises:
        NotAFile: The path is not a regular file.
        OSError: It cannot be written; the old file is untouched.
    """
    exists(location)  # raises NotAFile
    write_atomically(
        location.name,
        data,
        mode=0o666,
        permissions=mode,
        durable=False,
        folder=location.dir_fd,
        staging=staging,
    )


def _require_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotAFile("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile("it is a device, pipe or socket, not a file")
