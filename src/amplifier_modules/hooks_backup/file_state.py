"""The state of a file at one moment, to compare it later."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from amplifier_modules._shared.files.guarded_files import open_guarded
from amplifier_modules._shared.files.off_loop import off_loop
from amplifier_modules._shared.files.roots import Location, PathGuard


class State(NamedTuple):
    """A file at one moment.

    Attributes:
        digest: Digest of its content; None if there is no file.
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
        """Read a state from a record. Raises TypeError or ValueError if it is invalid."""
        digest, mode, size = value
        return cls(None if digest is None else str(digest), int(mode), int(size))


MISSING = State(None)


class Seen(NamedTuple):
    """A file as found.

    Attributes:
        state: Its state. For a file too large to read, the digest only covers its times.
        data: Its content; None if it is missing or too large.
        touched: Replaces the digest of a file that is too large.
    """

    state: State
    data: bytes | None = None
    touched: str | None = None

    def is_(self, state: State) -> bool:
        """Whether the file is in that state, in either notation."""
        if not state.is_there or not self.state.is_there:
            return state.is_there == self.state.is_there
        return state.digest in (self.state.digest, self.touched)


class Moved(Exception):
    """A link is in a path that had none."""


async def look(location: Location, max_bytes: int) -> Seen:
    """The state at `location` now; reads up to `max_bytes`.

    Raises:
        FileProblem: There is something other than a file.
        OSError: It cannot be read.
    """
    try:
        size = location.stat().st_size
    except FileNotFoundError:
        return Seen(MISSING)
    return await off_loop(min(size, max_bytes), lambda: look_now(location, max_bytes))


def look_now(location: Location, max_bytes: int) -> Seen:
    """Like `look`, for files of any size."""
    try:
        with open_guarded(location) as (descriptor, size):
            return _read_state(descriptor, size, max_bytes)
    except FileNotFoundError:
        return Seen(MISSING)


def _read_state(descriptor: int, size: int, max_bytes: int) -> Seen:
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    touched = f"touched {status.st_mtime_ns}, file {status.st_ino}, {status.st_size} bytes"
    if size <= max_bytes:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
        if len(data) <= max_bytes:
            return Seen(State(digest_of(data), mode, len(data)), data, touched)
    return Seen(State(touched, mode, size), None, touched)


def digest_of(data: bytes) -> str:
    """SHA-256 as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def exactly(path: str, *, create_parents: bool = False) -> Location:
    """Locate an absolute path that was found without links, without following any now.

    Raises:
        Moved: A link is in the path.
        OSError: A folder in the path is missing or cannot be entered.
    """
    top = Path(path).anchor
    guard = PathGuard([top], base=top, writing=False, setting="paths")
    location = guard.locate(path, create_parents=create_parents)
    if location.path != path:
        with location:
            raise Moved("its path now leads through a link")
    return location
