"""Files of JSON lines that nobody but the user may read or write."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_MOST_BYTES = 8_000_000


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line, in one write, so that several processes may do so.

    Raises:
        OSError: It cannot be written, or the path is a link or no regular file.
    """
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    file = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        os.fchmod(file, FILE_MODE)
        size = os.fstat(file).st_size
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        line = json.dumps(record).encode("ascii") + b"\n"
        rest = memoryview(b"\n" + line if torn else line)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def read(path: Path, most_bytes: int = _MOST_BYTES) -> list[dict[str, Any]]:
    """The lines that are whole, of so many bytes; none if there is no file.

    Raises:
        OSError: It cannot be read, or somebody else could have written it.
    """
    try:
        file = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(file, "rb") as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by others; make it yours and 0600")
        data = stream.read(most_bytes)
    return [record for line in data.splitlines() if (record := _record(line)) is not None]


def _open(path: Path, flags: int) -> int:
    for optional in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, optional, 0)
    file = os.open(path, flags, FILE_MODE)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is not a regular file")
    return file


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
