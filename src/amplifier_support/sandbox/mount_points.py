"""What is mounted on this machine, and other paths of the same files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from amplifier_support.below import is_below

TABLE = "/proc/self/mountinfo"


class MountPoint(NamedTuple):
    """One mount: the device, the path on it that is mounted, and where."""

    device: str
    root: str
    path: str


def mount_points() -> list[MountPoint]:
    """All mounts, in order; none where the system does not list them."""
    try:
        with open(TABLE, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    fields = (line.split(b" ", 5)[2:5] for line in lines)
    return [MountPoint(*map(_unescaped, found)) for found in fields if len(found) == 3]


def other_paths(paths: Iterable[str]) -> Iterator[str]:
    """Where paths, or parts of what is below them, are mounted a second time.

    Args:
        paths: Absolute paths, links resolved.
    """
    mounts = mount_points()
    # Of several at one place, the last is seen.
    by_path = {mount.path: mount for mount in mounts}
    for path in paths:
        above = path
        while above not in by_path and above != os.path.dirname(above):
            above = os.path.dirname(above)
        if (own := by_path.get(above)) is None:
            continue
        inner = _moved(path, own.path, own.root)
        for mount in mounts:
            if mount is own or mount.device != own.device:
                continue
            if is_below(inner, mount.root):
                yield _moved(inner, mount.root, mount.path)
            elif is_below(mount.root, inner):
                yield mount.path


def _moved(path: str, folder: str, other: str) -> str:
    """A path in one folder as the same path in another one."""
    return os.path.normpath(os.path.join(other, os.path.relpath(path, folder)))


def _unescaped(field: bytes) -> str:
    octal = re.sub(rb"\\([0-7]{3})", lambda digits: bytes([int(digits[1], 8)]), field)
    return os.fsdecode(octal)
