"""Reads and writes whole files at a guarded location."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from amplifier_modules._shared.files.roots import Location
from amplifier_support import journal
from amplifier_support.files import (
    make_private_folder,
    open_private,
    open_regular,
    write_atomically,
)


class FileProblem(Exception):
    """The operation does not make sense on what is there; the message says why."""


class NotAFile(FileProblem):
    """The path is a folder, a device or a pipe."""


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
    """Return True if a file is there. Raises NotAFile when it is something else."""
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


T = TypeVar("T")

_INLINE = 1024 * 1024


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once when it handles few bytes, which is faster, else in a thread."""
    return work() if size <= _INLINE else await in_thread(work)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancellation waits for it, since it uses the caller's descriptors."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


_MAX_BYTES = 8_000_000


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line, in one write, so that several processes may do so.

    Raises:
        OSError: It cannot be written, or the path is a link or not a regular file.
    """
    make_private_folder(path.parent)
    file = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        torn = journal.ends_inside_line(file)
        line = json.dumps(record).encode("ascii") + b"\n"
        rest = memoryview(b"\n" + line if torn else line)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def read(path: Path, most_bytes: int = _MAX_BYTES) -> list[dict[str, Any]]:
    """The complete lines, up to so many bytes; none if the file is missing.

    Raises:
        OSError: It cannot be read, or another user could have written it.
    """
    try:
        file = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(file, "rb") as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by others; make it yours and 0600")
        data = stream.read(most_bytes)
    return journal.readable_records(data)
