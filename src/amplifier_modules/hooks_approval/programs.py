"""Check which program a command would run, and whether the user knows it.

A program in the working directory may have been written by the model, or come with the files. It is
known if it was already on PATH when the session began and has not changed since, as in a virtual
environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from amplifier_support.below import is_below


class _Identity(NamedTuple):
    """Attributes of a file that change when it is replaced or written to."""

    device: int
    inode: int
    modified: int
    size: int


class Programs:
    """The programs on PATH, as they were when the session began.

    Args:
        base: The working directory, links resolved.
        path: The PATH of commands.
    """

    def __init__(self, base: str, path: str | None = None) -> None:
        self._base = base
        path = os.environ.get("PATH", os.defpath) if path is None else path
        self._entries = path.split(os.pathsep)
        self._known: dict[str, _Identity] = {}
        for entry in self._entries:
            if os.path.isabs(entry) and self._is_inside(entry):
                self._known.update(_programs_in(entry))

    def is_known(self, name: str, folder: str) -> bool:
        """Whether a name refers to a program outside the working directory, or to a known one in it.

        Args:
            name: The first word of the command; any path is accepted, as it shows what is run.
            folder: Where the command runs.
        """
        if "/" in name:
            return True
        for entry in self._entries:
            place = os.path.join(folder, entry)
            file = os.path.join(place, name)
            if not os.path.isfile(file) or not os.access(file, os.X_OK):
                continue
            if os.path.isabs(entry) and not self._is_inside(place):
                return True
            return self._known.get(file) == _identity(file)
        # A shell built-in, or nothing that can be run.
        return True

    def _is_inside(self, path: str) -> bool:
        return is_below(os.path.realpath(path), self._base)


def _programs_in(folder: str) -> Iterator[tuple[str, _Identity]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        file = os.path.join(folder, name)
        if (identity := _identity(file)) is not None and os.access(file, os.X_OK):
            yield file, identity


def _identity(file: str) -> _Identity | None:
    try:
        facts = os.stat(file)
    except OSError:
        return None
    return _Identity(facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size)
