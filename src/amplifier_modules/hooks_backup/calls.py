"""The files of one tool call, before and after it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from amplifier_modules._shared.files.guarded_files import FileProblem
from amplifier_modules._shared.files.roots import Location, OutsideRoots, PathError, PathGuard
from amplifier_modules.hooks_backup.store import MISSING, Seen, State, look
from amplifier_support.named_tuple import NamedTuple


class Place(NamedTuple):
    """The place of a file, now or later: its absolute path without links, and folders to be
    created.
    """

    path: str
    folders: list[str]


class Before(NamedTuple):
    """A file before a call.

    Attributes:
        place: Where it is.
        state: Its state.
        version: How often calls of the turn had changed it; see `Call`.
        why: Why it has no copy; empty if it has one, or needs none.
        named: The call names it as a file to change.
    """

    place: Place
    state: State
    version: int
    why: str = ""
    named: bool = True

    def as_entry(self) -> dict[str, Any]:
        """The file as an entry of a record."""
        entry: dict[str, Any] = {"path": self.place.path, "before": list(self.state)}
        if self.place.folders:
            entry["folders"] = self.place.folders
        if self.why:
            entry["why"] = self.why
        return entry


class Call(NamedTuple):
    """A running call.

    Attributes:
        id: Its id.
        turn: The turn's id.
        tool: The tool's name.
        files: The files it may change, in their state before.
        candidates: Paths without a file, where the call may create one.
        ids: The ids its events carry.
    """

    id: str
    turn: str
    tool: str
    files: list[Before]
    candidates: list[str]
    ids: dict[str, Any]


def paths_under(values: object, keys: Iterable[str]) -> Iterator[str]:
    """The texts under `keys` in a tool's input, also in nested lists and objects."""
    wanted = frozenset(keys)

    def walk(value: object, named: bool) -> Iterator[str]:
        if isinstance(value, str):
            if named and value and "\0" not in value:
                yield value
        elif isinstance(value, list):
            for item in cast("list[object]", value):
                yield from walk(item, named)
        elif isinstance(value, Mapping):
            for key, item in cast("Mapping[object, object]", value).items():
                yield from walk(item, key in wanted)

    return walk(values, False)


def find(guard: PathGuard, path: str) -> Place:
    """Find where the file of a path is or would be created, following links inside allowed folders.

    Raises:
        PathError: It is outside them, or not a path.
        OSError: It cannot be determined.
    """
    absolute = os.path.normpath(os.path.join(guard.base, path))
    behind: list[str] = []
    while True:
        try:
            with guard.locate(absolute) as location:
                real = location.path
            break
        except FileNotFoundError:
            absolute, name = os.path.split(absolute)
            if not name:
                raise
            behind.append(name)
    folders: list[str] = []
    for name in reversed(behind):
        folders.append(real)
        real = os.path.join(real, name)
    return Place(real, folders)


async def state_at(path: str, guard: PathGuard, max_bytes: int) -> Seen:
    """The state of the file at a path, even if a folder in the path is missing.

    Raises:
        FileProblem: There is something other than a file.
        PathError: It is outside the allowed folders.
        OSError: It cannot be read.
    """
    try:
        location = guard.locate(path)
    except (FileNotFoundError, NotADirectoryError):
        return Seen(MISSING)
    with location:
        _require_unmoved(location, path)
        return await look(location, max_bytes)


def _require_unmoved(location: Location, path: str) -> None:
    if location.path != path:
        raise OutsideRoots(f"{path!r} now leads through a link")


def reason(error: Exception) -> str:
    """Describe in a few words why a file could not be checked or saved."""
    if isinstance(error, OutsideRoots):
        return "it is outside the backed-up folders ('paths' in the config of hooks-backup)"
    if isinstance(error, (FileProblem, PathError)):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
