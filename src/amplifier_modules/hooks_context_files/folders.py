"""Which folders are looked into."""

from __future__ import annotations

import os
import stat

SKIPPED = frozenset({"node_modules", "vendor", "site-packages", "venv", "__pycache__"})
"""Folders that hold other people's work; what it says is meant for work on that."""


def project_folders(working_dir: str) -> list[str]:
    """The repository's root and what leads from there to the working directory, in this order.

    Only the working directory where there is no repository around it. The home folder is no
    repository of what lies in it, and neither is a folder in which everybody may create files:
    what lies there may be anybody's. In such a working directory there is none.
    """
    here = os.path.realpath(working_dir)
    home = os.path.realpath(os.path.expanduser("~"))
    if is_shared(here):
        return []
    found: list[str] = []
    folder = here
    while not is_shared(folder) and (folder != home or folder == here):
        found.append(folder)
        if os.path.lexists(os.path.join(folder, ".git")):
            return found[::-1]
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return [here]


def nested_folders(root: str, path: str) -> list[str]:
    """The folders from below `root` down to the one of `path`; none if it lies elsewhere."""
    real = os.path.realpath(path)
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    relative = os.path.relpath(folder, root)
    names = [] if relative == os.curdir else relative.split(os.sep)
    if any(name.startswith(".") or name in SKIPPED for name in names):
        return []
    return [os.path.join(root, *names[: count + 1]) for count in range(len(names))]


def is_shared(folder: str) -> bool:
    """Whether everybody may create files in the folder, or nobody knows."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return True
