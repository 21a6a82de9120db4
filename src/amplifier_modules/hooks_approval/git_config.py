"""Whether git runs only itself in a repository.

The configuration of a repository can name programs that even `git status` runs. A clone has no such
configuration, but a repository that came as an archive can.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_LARGEST = 256 * 1024
_RUNS = re.compile(
    rb"^\s*\[\s*(include|alias)"
    rb"|^\s*(\[[^\]]*\]\s*)?(fsmonitor|external|textconv|command|process|clean|smudge|pager|hookspath"
    rb"|sshcommand|askpass|editor|helper|program|gitproxy)\s*(=|$)",
    re.IGNORECASE | re.MULTILINE,
)


def runs_only_git(folder: str) -> bool:
    """Whether no program is named in the configuration of the repository of a folder; in doubt, no."""
    for place in (Path(folder), *Path(folder).parents):
        entry = place / ".git"
        if os.path.lexists(entry):
            files = _config_files(entry)
            return files is not None and all(map(_is_harmless, files))
        # git takes a folder like this for a repository without a work tree.
        if os.path.lexists(place / "HEAD") and os.path.lexists(place / "objects"):
            return _is_harmless(place / "config")
    return True


def _config_files(entry: Path) -> list[Path] | None:
    """The configuration files of a repository; None if they are not known."""
    folder = entry
    if not entry.is_dir():  # a work tree or a submodule
        name = _path_in(_read(entry), "gitdir:")
        if not name:
            return None
        folder = entry.parent / name
    common = _path_in(_read(folder / "commondir"))
    folders = [folder, folder / common] if common else [folder]
    return [one / name for one in folders for name in ("config", "config.worktree")]


def _path_in(data: bytes | None, label: str = "") -> str:
    text = (data or b"").decode("utf-8", "replace").partition("\0")[0].strip()
    return text.removeprefix(label).strip() if text.startswith(label) else ""


def _is_harmless(file: Path) -> bool:
    data = _read(file)
    return data is not None and not _RUNS.search(data)


def _read(file: Path) -> bytes | None:
    """The content of a file, empty if it does not exist; None if it cannot be read whole."""
    try:
        # A pipe would block.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = os.read(descriptor, _LARGEST + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= _LARGEST else None
