"""What a file is at one moment, so that it can be told later whether it still is."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_modules._shared.files.off_loop import off_loop
from amplifier_modules._shared.files.roots import Location, PathGuard
from amplifier_modules._shared.files.whole import opened


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
    """A file as it was found.

    Attributes:
        state: What it is. Of a file too large to be read the digest only says when it was touched.
        data: Its content; None of a file that is not there or too large.
        touched: What stands for the digest where it is too large.
    """

    state: State
    data: bytes | None = None
    touched: str | None = None

    def is_(self, state: State) -> bool:
        """Whether it is what it was, whichever way that was noted."""
        if not state.is_there or not self.state.is_there:
            return state.is_there == self.state.is_there
        return state.digest in (self.state.digest, self.touched)


class Moved(Exception):
    """A link is on a path that had none."""


async def look(location: Location, most: int) -> Seen:
    """What is at `location` now; up to `most` bytes are read.

    Raises:
        FileProblem: Something that is no file is there.
        OSError: It cannot be read.
    """
    try:
        size = location.stat().st_size
    except FileNotFoundError:
        return Seen(MISSING)
    return await off_loop(min(size, most), lambda: look_now(location, most))


def look_now(location: Location, most: int) -> Seen:
    """As `look`, whatever the size."""
    try:
        with opened(location) as (descriptor, size):
            return _seen(descriptor, size, most)
    except FileNotFoundError:
        return Seen(MISSING)


def _seen(descriptor: int, size: int, most: int) -> Seen:
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    touched = f"touched {status.st_mtime_ns}, file {status.st_ino}, {status.st_size} bytes"
    if size <= most:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
        if len(data) <= most:
            return Seen(State(digest_of(data), mode, len(data)), data, touched)
    return Seen(State(touched, mode, size), None, touched)


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
