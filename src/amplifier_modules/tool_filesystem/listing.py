"""List a folder."""

from __future__ import annotations

import os
from typing import NamedTuple

from amplifier_modules._shared.files.roots import Location
from amplifier_modules.tool_filesystem.errors import NotAFolder
from amplifier_support.printable import printable

MAX_ENTRIES = 1000
"""Most entries in one listing."""


class Listing(NamedTuple):
    """The entries of a folder as lines, folders first, and how many there are in all."""

    lines: list[str]
    total: int


def list_folder(location: Location) -> Listing:
    """The folder's entries: `name/`, `name  <n> bytes`, `name -> target`.

    Raises:
        NotAFolder: The path is not a folder.
        OSError: It cannot be read.
    """
    folders: list[str] = []
    others: list[str] = []
    try:
        entries = _entries(location)
    except NotADirectoryError as error:
        raise NotAFolder("it is a file, not a folder") from error
    for entry in entries:
        (folders if entry.endswith("/") else others).append(entry)
    lines = [*sorted(folders), *sorted(others)]
    return Listing(lines[:MAX_ENTRIES], len(lines))


def _entries(location: Location) -> list[str]:
    if location.dir_fd is None:
        with os.scandir(location.name) as entries:
            return [_described(entry) for entry in entries]
    descriptor = location.open(os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(descriptor) as entries:
            return [_described(entry, descriptor) for entry in entries]
    finally:
        os.close(descriptor)


def _described(entry: os.DirEntry[str], folder: int | None = None) -> str:
    name = printable(entry.name)
    try:
        if entry.is_symlink():
            target = os.readlink(entry.name if folder is not None else entry.path, dir_fd=folder)
            return f"{name} -> {printable(target)}"
        if entry.is_dir(follow_symlinks=False):
            return f"{name}/"
        if entry.is_file(follow_symlinks=False):
            return f"{name}  {entry.stat(follow_symlinks=False).st_size} bytes"
    except OSError:
        return f"{name}  (unreadable)"
    return f"{name}  (device, pipe or socket)"
