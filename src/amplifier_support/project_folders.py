"""Folders of a repository whose instruction files concern a working directory."""

from __future__ import annotations

import os
import stat


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
    folders: list[str] = []
    folder = here
    while not is_shared(folder) and (folder != home or folder == here):
        folders.append(folder)
        if os.path.lexists(os.path.join(folder, ".git")):
            return folders[::-1]
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
    return [here]


def is_shared(folder: str) -> bool:
    """Return True if everyone may create files in the folder, or this is unknown."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return True
