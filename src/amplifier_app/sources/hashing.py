"""One hash over the files of a module, the same on every machine that has the same files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_NO_CONTENT = {".git", "__pycache__", ".venv"}
"""Folders that are made from the content or beside it."""

_BUILT = {"dist", "build"}
"""The same at the top; further down a package may be called so."""

_INSTALLERS_NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""What an installer writes into a `.dist-info` folder: paths and times of this machine."""


def content_hash(root: Path) -> str:
    """`"sha256:…"` over relative names, bytes and executable bits of what lies below `root`.

    Left out are `.git`, `.venv`, `dist` and `build` at the top, cached byte code, `*.egg-info`
    and the notes of installers. Links count as what they say, not as what they lead to.

    Args:
        root: A folder, or a single file.

    Raises:
        OSError: Something cannot be read.
    """
    digest = hashlib.sha256()
    # A file that is itself the source has no name of its own in it.
    files = [("", root)] if root.is_file() else sorted(content_files(root))
    for name, path in files:
        mode = path.lstat().st_mode
        link = stat.S_ISLNK(mode) and name != ""
        content = os.readlink(path).encode("utf-8", "surrogateescape") if link else _digest(path)
        kind = b"link" if link else b"exec" if mode & stat.S_IXUSR else b"file"
        for part in (name.encode("utf-8", "surrogateescape"), kind, content):
            # Lengths keep one part from running into the next.
            digest.update(len(part).to_bytes(8, "big") + part)
    return f"sha256:{digest.hexdigest()}"


def content_files(root: Path) -> Iterator[tuple[str, Path]]:
    """The files and links below a folder that count as its content: relative name and path."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        left_out = _NO_CONTENT | _BUILT if here == root else _NO_CONTENT
        folders[:] = [n for n in folders if n not in left_out and not n.endswith(".egg-info")]
        for name in [*names, *links]:
            path = here / name
            if name in _NO_CONTENT:
                continue
            if here.name.endswith(".dist-info") and name in _INSTALLERS_NOTES:
                continue
            if path.is_symlink() or path.is_file():
                yield path.relative_to(root).as_posix(), path


def _digest(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
