"""Check whether git runs other programs in a repository.

The configuration of a repository can name programs that even `git status` runs. So can that of a
repository inside it, and a hook is itself a program. A fresh clone has none of these, but a repository
unpacked from an archive can.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from amplifier_support.readable_files import read_file

_LARGEST = 256 * 1024
_LARGEST_INDEX = 64 * 1024 * 1024
_RUNS = re.compile(
    rb"^\s*\[\s*(include|alias|pager)"
    rb"|^\s*(\[[^\]]*\]\s*)?(fsmonitor|external|textconv|command|process|clean|smudge|pager|hookspath"
    rb"|sshcommand|askpass|editor|helper|program|gitproxy|uploadpack|vcs|allow|alternaterefscommand)\s*(=|$)",
    re.IGNORECASE | re.MULTILINE,
)


def runs_only_git(folder: str) -> bool:
    """Whether a git command that reads runs no other program in a folder; False if in doubt."""
    for place in (Path(folder), *Path(folder).parents):
        entry = place / ".git"
        if os.path.lexists(entry):
            folders = _repository_folders(entry)
            return folders is not None and all(map(_is_harmless, folders))
        # For git, such a folder is a repository without a work tree.
        if os.path.lexists(place / "HEAD") and os.path.lexists(place / "objects"):
            return _is_harmless(place)
    return True


def _repository_folders(entry: Path) -> list[Path] | None:
    """The folders with the files of a repository; None if they cannot be determined."""
    folder = entry
    if not entry.is_dir():  # a work tree or a submodule
        name = _path_in(_read(entry), "gitdir:")
        if not name:
            return None
        folder = entry.parent / name
    common = _path_in(_read(folder / "commondir"))
    return [folder, folder / common] if common else [folder]


def _path_in(data: bytes | None, label: str = "") -> str:
    text = (data or b"").decode("utf-8", "replace").partition("\0")[0].strip()
    return text.removeprefix(label).strip() if text.startswith(label) else ""


def _is_harmless(folder: Path) -> bool:
    """Whether nothing in this folder makes a git command that reads run a program."""
    configs = [_read(folder / name) for name in ("config", "config.worktree")]
    if any(data is None or _RUNS.search(data) for data in configs):
        return False
    # Even commands that only read update the index, with the times of changed files.
    if os.path.lexists(folder / "hooks" / "post-index-change"):
        return False
    indexes = [folder / "index", *folder.glob("sharedindex.*")]
    return not any(map(_may_have_repositories, indexes))


def _may_have_repositories(index: Path) -> bool:
    """Whether an index may have an entry for another repository, whose configuration git also reads."""
    data = _read(index, _LARGEST_INDEX)
    # The mode of such an entry. Other bytes can look the same; the cost is a question.
    return data is None or b"\0\0\xe0\0" in data


def _read(file: Path, largest: int = _LARGEST) -> bytes | None:
    """The content of a file, empty if it does not exist; None if it is unreadable or too large."""
    try:
        data = read_file(file, largest + 1)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None
    return data if len(data) <= largest else None
