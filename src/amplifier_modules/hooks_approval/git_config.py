"""Whether git runs only itself in a repository.

The configuration of a repository can name programs that even `git status` runs, and so can that of a
repository inside it; a hook is one by itself. A clone has nothing like that, but a repository that came
as an archive can.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_LARGEST = 256 * 1024
_LARGEST_INDEX = 64 * 1024 * 1024
_RUNS = re.compile(
    rb"^\s*\[\s*(include|alias|pager)"
    rb"|^\s*(\[[^\]]*\]\s*)?(fsmonitor|external|textconv|command|process|clean|smudge|pager|hookspath"
    rb"|sshcommand|askpass|editor|helper|program|gitproxy|uploadpack|vcs|allow|alternaterefscommand)\s*(=|$)",
    re.IGNORECASE | re.MULTILINE,
)


def runs_only_git(folder: str) -> bool:
    """Whether no program is named in the configuration of the repository of a folder; in doubt, no."""
    for place in (Path(folder), *Path(folder).parents):
        entry = place / ".git"
        if os.path.lexists(entry):
            folders = _repository_folders(entry)
            return folders is not None and all(map(_is_harmless, folders))
        # git takes a folder like this for a repository without a work tree.
        if os.path.lexists(place / "HEAD") and os.path.lexists(place / "objects"):
            return _is_harmless(place)
    return True


def _repository_folders(entry: Path) -> list[Path] | None:
    """Where a repository keeps its files; None if that is not known."""
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
    """Whether nothing in a folder of a repository makes git run a program when it reads."""
    configs = [_read(folder / name) for name in ("config", "config.worktree")]
    if any(data is None or _RUNS.search(data) for data in configs):
        return False
    # Commands that read write the index to note when files changed.
    if os.path.lexists(folder / "hooks" / "post-index-change"):
        return False
    indexes = [folder / "index", *folder.glob("sharedindex.*")]
    return not any(map(_may_have_repositories, indexes))


def _may_have_repositories(index: Path) -> bool:
    """Whether an index has an entry for another repository, whose configuration git follows, too."""
    data = _read(index, _LARGEST_INDEX)
    # Such an entry has this mode. A number can look like it; the cost is a question.
    return data is None or b"\0\0\xe0\0" in data


def _read(file: Path, largest: int = _LARGEST) -> bytes | None:
    """The content of a file, empty if it does not exist; None if it cannot be read whole."""
    try:
        # A pipe would block.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return None
        data = os.read(descriptor, min(facts.st_size, largest) + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= largest else None
