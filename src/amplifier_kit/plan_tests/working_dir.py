"""The working directory of a test: prepared before the run, and compared after it."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.paths import temporary_dir
from amplifier_app.plan.tree.nodes import Node, text_of
from amplifier_kit.plan_tests.cases import Case
from amplifier_support.folder_copies import is_special, reason_of

_MOST_FILES = 10_000
_MOST_BYTES = 200 * 1024 * 1024
"""Of a folder to copy."""

_COMPARED_BYTES = 8 * 1024 * 1024
"""Of a file that a command made, which may have any size."""


class FileState(NamedTuple):
    """A file at one moment.

    Attributes:
        content: Its content, of a large file only the beginning; of a link, its target.
        rest: Size and time of change of a large file; None if `content` is all of it.
    """

    content: bytes
    rest: tuple[int, int] | None = None


@contextlib.contextmanager
def working_dir(case: Case) -> Generator[Path]:
    """The working directory of a test, which is current meanwhile and removed afterwards.

    Raises:
        ConfigError: Its files cannot be prepared.
    """
    back = os.getcwd()
    with temporary_folder() as parent:
        # Paths that tools report are compared with this one.
        folder = Path(os.path.realpath(parent)) / "work"
        _copy(case.path_of("workdir"), folder)
        _write(case.mapping("files"), folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(back)


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """A folder that is removed afterwards.

    Raises:
        ConfigError: It cannot be created.
    """
    place = temporary_dir()
    try:
        temporary = tempfile.TemporaryDirectory(
            prefix="amplifier-test-", dir=place, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise ConfigError(f"cannot create a temporary folder: {reason_of(error)}") from error
    with temporary as folder:
        yield Path(folder)


def _copy(source: Path | None, folder: Path) -> None:
    """A copy of a folder, or an empty one; links are copied as they are."""
    files = size = 0

    def left_out(place: str, names: list[str]) -> list[str]:
        nonlocal files, size
        special = [name for name in names if is_special(os.path.join(place, name))]
        for name in names:
            files += 1
            with contextlib.suppress(OSError):  # reported by the copy
                size += os.lstat(os.path.join(place, name)).st_size
        if files > _MOST_FILES or size > _MOST_BYTES:
            most = f"{_MOST_FILES:,} files or {_MOST_BYTES // 1024 // 1024} MiB"
            raise ConfigError(f"workdir: {source} has more than {most}")
        return special

    try:
        if source is None:
            folder.mkdir()
        else:
            shutil.copytree(source, folder, symlinks=True, ignore=left_out)
    except OSError as error:
        raise ConfigError(f"cannot copy the workdir {source}: {reason_of(error)}") from error


def _write(files: Mapping[str, Node], folder: Path) -> None:
    for name, node in files.items():
        file = folder / name
        try:
            # A link in the copied folder may point outside it.
            if not file.parent.resolve().is_relative_to(folder):
                raise ConfigError(f"files: {name!r} leads out of the working directory")
            file.unlink(missing_ok=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text_of(node) or "", encoding="utf-8", newline="")
        except OSError as error:
            raise ConfigError(f"files: cannot write {name!r}: {reason_of(error)}") from error


# -- what a run changes ------------------------------------------------------------------


def states(folder: Path) -> dict[str, FileState]:
    """The files and links in a folder, by relative path; those of git are left out."""
    found: dict[str, FileState] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            file = Path(place, name)
            # A command left running may remove files at any time.
            with contextlib.suppress(FileNotFoundError):
                found[str(file.relative_to(folder))] = _state(file)
    return found


def _state(file: Path) -> FileState:
    """
    Raises:
        FileNotFoundError: It is gone.
    """
    try:
        if file.is_symlink():
            return FileState(os.fsencode(os.readlink(file)))
        status = file.stat()
        # Reading a pipe would not end.
        if not stat.S_ISREG(status.st_mode):
            return FileState(b"")
        with file.open("rb") as opened:
            content = opened.read(_COMPARED_BYTES)
    except PermissionError:
        return FileState(b"")
    is_whole = status.st_size <= _COMPARED_BYTES
    return FileState(content, None if is_whole else (status.st_size, status.st_mtime_ns))
