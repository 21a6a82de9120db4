"""Folders in which something is put together before it gets its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from amplifier_app.plan.source_spec import ArchiveSource, GitSource
from amplifier_app.sources.errors import SourceError
from amplifier_support.files import lock_at, make_private_folder

_PREFIX = ".stage-"


@contextlib.contextmanager
def staging(folder: Path) -> Generator[Path]:
    """A new folder in `folder`, removed in the end. A missing `folder` is created for the user only.

    It is locked, so that what killed processes left is recognised and removed by the next one.

    Raises:
        OSError: It cannot be created.
    """
    make_private_folder(folder)
    _remove_abandoned(folder)
    while True:
        with (
            tempfile.TemporaryDirectory(prefix=_PREFIX, dir=folder) as name,
            _hold_lock(name) as is_ours,
        ):
            if is_ours is False:
                continue  # Another process took it for abandoned before it was locked.
            yield Path(name)
            return


@contextlib.contextmanager
def _hold_lock(path: str) -> Generator[bool | None]:
    """Hold the lock of a folder; False if it is another process's, or gone; None if it can have none."""
    if os.name != "posix":
        yield None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        yield False
        return
    try:
        lock = lock_at(path, descriptor)
    except OSError:  # a file system without locks
        yield None
        return
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    for path in list(folder.glob(f"{_PREFIX}*")):
        with _hold_lock(str(path)) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(path, ignore_errors=True)


_NO_CONTENT = {".git", "__pycache__", ".venv"}
"""Folders that are generated from the content or next to it."""

_BUILT = {"dist", "build"}
"""The same, but only at the top; further down a package may have such a name."""

_INSTALLERS_NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""Files that installers write into a `.dist-info` folder, with local paths and times."""


def content_hash(root: Path, *, whole: bool = False) -> str:
    """`"sha256:…"` over the relative names, bytes and executable bits of the files below `root`.

    Excludes `.git`, `.venv`, `dist` and `build` at the top, cached byte code, `*.egg-info` and
    files written by installers. A link is hashed as its target path, not as the target's content.

    Args:
        root: A folder, or a single file.
        whole: Whether to exclude only `.git` and cached byte code.

    Raises:
        OSError: Something cannot be read.
    """
    digest = hashlib.sha256()
    # The name of a single-file source is not part of its content.
    files = [("", root)] if root.is_file() else sorted(content_files(root, whole=whole))
    for name, path in files:
        mode = path.lstat().st_mode
        link = stat.S_ISLNK(mode) and name != ""
        content = os.readlink(path).encode("utf-8", "surrogateescape") if link else _digest(path)
        kind = b"link" if link else b"exec" if mode & stat.S_IXUSR else b"file"
        for part in (name.encode("utf-8", "surrogateescape"), kind, content):
            # Lengths keep one part from running into the next.
            digest.update(len(part).to_bytes(8, "big") + part)
    return f"sha256:{digest.hexdigest()}"


def content_files(root: Path, *, whole: bool = False) -> Iterator[tuple[str, Path]]:
    """The relative name and the path of each file and link that is part of a folder's content; see `content_hash`."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        left_out = _NO_CONTENT | _BUILT if here == root else _NO_CONTENT
        if whole:
            left_out = {".git", "__pycache__"}
        folders[:] = [
            n for n in folders if n not in left_out and (whole or not n.endswith(".egg-info"))
        ]
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


def subfolder(root: Path, source: GitSource | ArchiveSource) -> Path:
    """The folder below `root` that a source names, without links.

    Raises:
        SourceError: The folder does not exist, or is outside `root`.
    """
    folder = (root / source.subdirectory).resolve()
    if not folder.is_relative_to(root.resolve()):
        what = f"the subdirectory {source.subdirectory!r}"
        raise SourceError(f"{what} leaves the repository or archive")
    if not folder.is_dir():
        raise SourceError(
            f"{source.shown} has no folder {source.subdirectory!r}",
            hint="Check the part after '#subdirectory='",
        )
    return folder


def links_out(root: Path) -> Iterator[str]:
    """The links below `root` that point outside it, as relative paths; none is followed."""
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
        # A link cycle has no target, so none inside either.
        return Path(link.anchor)
