"""Choose the folders to read."""

from __future__ import annotations

import os
import stat

SKIPPED = frozenset({"node_modules", "vendor", "site-packages", "venv", "__pycache__"})
"""Folders with other projects' code, whose instructions are not meant for this one."""


def project_folders(working_dir: str) -> list[str]:
    """The folders from the repository's root to the working directory, in this order.

    Outside a repository, only the working directory. The home folder is not treated as a repository
    for the folders in it, nor is a folder in which everyone may create files, since anyone may own
    what is in it. If the working directory is such a folder, there are none.
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
    """The folders from below `root` down to that of `path`; none if it is outside."""
    real = os.path.realpath(path)
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    relative = os.path.relpath(folder, root)
    names = [] if relative == os.curdir else relative.split(os.sep)
    if any(name.startswith(".") or name in SKIPPED for name in names):
        return []
    return [os.path.join(root, *names[: count + 1]) for count in range(len(names))]


def is_shared(folder: str) -> bool:
    """Whether everyone may create files in the folder, or this is unknown."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return True
