"""What a file is at one moment, so that it can be told later whether it still is."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_modules._shared.files import opened
from amplifier_modules._shared.off_loop import off_loop
from amplifier_modules._shared.paths import Location, PathGuard

_LARGEST_HASHED = 256 * 1024 * 1024
_PIECE = 1024 * 1024


class State(NamedTuple):
    """A file at one moment.

    Attributes:
        digest: Of its content; None where no file is.
        mode: Its permissions.
        size: In bytes.
    """

    digest: str | None
    mode: int = 0
    size: int = 0

    @property
    def is_there(self) -> bool:
        return self.digest is not None

    @classmethod
    def of_record(cls, value: Any) -> State:
        """The state as it stands in a record. Raises TypeError or ValueError for anything else."""
        digest, mode, size = value
        return cls(None if digest is None else str(digest), int(mode), int(size))


MISSING = State(None)


class Seen(NamedTuple):
    """A file's state, and its content where it is not larger than asked for."""

    state: State
    data: bytes | None


class Moved(Exception):
    """A link is on a path that had none."""


async def look(location: Location, most: int) -> Seen:
    """What is at `location` now; content of up to `most` bytes with it.

    Raises:
        FileProblem: Something that is no file is there.
        OSError: It cannot be read.
    """
    try:
        size = location.stat().st_size
    except FileNotFoundError:
        return Seen(MISSING, None)
    return await off_loop(size, lambda: look_now(location, most))


def look_now(location: Location, most: int) -> Seen:
    """As `look`, whatever the size."""
    try:
        with opened(location) as (descriptor, size):
            return _seen(descriptor, size, most)
    except FileNotFoundError:
        return Seen(MISSING, None)


def _seen(descriptor: int, size: int, most: int) -> Seen:
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if size > _LARGEST_HASHED:
        # Not worth reading: that nobody has touched it is enough.
        touched = f"untouched since {status.st_mtime_ns}, file {status.st_ino}, {size} bytes"
        return Seen(State(touched, mode, size), None)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        if size <= most:
            data = file.read(most + 1)
            if len(data) <= most:
                return Seen(State(digest_of(data), mode, len(data)), data)
            file.seek(0)
        digest, size = hashlib.sha256(), 0
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return Seen(State(digest.hexdigest(), mode, size), None)


def digest_of(data: bytes) -> str:
    """SHA-256 as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def exactly(path: str, *, create_parents: bool = False) -> Location:
    """The place of an absolute path that was found without links, without following any now.

    Raises:
        Moved: A link is on the way, or there.
        OSError: A folder on the way is missing or cannot be entered.
    """
    top = Path(path).anchor
    guard = PathGuard([top], base=top, writing=False, setting="paths")
    location = guard.locate(path, create_parents=create_parents)
    if location.path != path:
        with location:
            raise Moved("there is a link on its path now")
    return location
