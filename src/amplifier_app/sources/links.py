"""Links that lead out of the folder they came in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def links_out(root: Path) -> Iterator[str]:
    """The links below `root` that lead out of it, relative to it; nothing is followed."""
    real = root.resolve()
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink() and not _target(path).is_relative_to(real):
                yield path.relative_to(root).as_posix()


def _target(link: Path) -> Path:
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        # A circle of links leads nowhere, so not to a place inside.
        return Path(link.anchor)
