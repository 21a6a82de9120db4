"""Files that a user names for reading: never a wait without end, nor a device that fills the memory."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path

STREAM_SECONDS = 10
"""How long to wait for each piece of what comes through a pipe."""


def open_to_read(path: str | Path) -> int:
    """A descriptor of a regular file, through links; never blocking.

    Raises:
        OSError: It is a folder, a pipe or a device, or the system refused; `strerror` says which.
    """
    descriptor, kind = _open(path)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file, at most `max_bytes`.

    Raises:
        OSError: As `open_to_read` does.
    """
    with open(open_to_read(path), "rb") as file:
        return file.read(max_bytes)


def read_file_or_stream(path: str | Path, max_bytes: int) -> bytes:
    """Like `read_file`, but also reads a pipe or a device, such as `/dev/fd/63`.

    Raises:
        OSError: It cannot be read, or nothing comes for `STREAM_SECONDS`.
    """
    descriptor, kind = _open(path)
    with open(descriptor, "rb") as file:
        return file.read(max_bytes) if kind == stat.S_IFREG else _read_stream(descriptor, max_bytes)


def _open(path: str | Path) -> tuple[int, int]:
    # Does not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFDIR:
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return descriptor, kind


def _read_stream(descriptor: int, left: int) -> bytes:
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while left > 0:
        if not poll.poll(STREAM_SECONDS * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"no data for {STREAM_SECONDS} s")
        part = os.read(descriptor, min(left, 1 << 16))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
