"""The working directory of each row: the current one, one it names, or one of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast, get_args

from amplifier_app.base.errors import AppError, ConfigError, UsageError
from amplifier_app.base.file_writing import make_private_folder
from amplifier_batch.input import PromptTemplate, Row
from amplifier_batch.record.folder import is_running
from amplifier_support.files import describe_reason, is_special
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import TimedOut, find_program, git_environment, run

Kind = Literal["same", "fresh", "copy", "clone"]

_CLONE_SECONDS = 600.0


class Workdir(NamedTuple):
    """The working directory of a row.

    Attributes:
        kind: In a folder itself, in an empty one, or in a copy or a git clone of a folder.
        source: The folder, absolute.
        target: The row's own folder; that of `source` with the kind `same`.
    """

    kind: Kind
    source: str
    target: str

    def prepare(self) -> None:
        """Create the row's folder, unless an earlier run of the row has done it.

        Raises:
            AppError: It cannot be created, or the source cannot be copied.
        """
        target = Path(self.target)
        if self.kind == "same" or target.exists():
            return
        make_private_folder(target.parent)
        # What a crash left is not taken for a whole copy.
        unfinished = target.with_name(f".{target.name}.unfinished")
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            if self.kind == "fresh":
                unfinished.mkdir(mode=0o700)
            elif self.kind == "copy":
                left_out = _exclusions(target.parent.parent, target.parent)
                shutil.copytree(self.source, unfinished, symlinks=True, ignore=left_out)
            else:
                _clone(Path(self.source), unfinished)
            unfinished.rename(target)
        except OSError as error:
            raise AppError(
                f"cannot create the folder of the row {target}: {describe_reason(error)}"
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


class Workdirs:
    """The working directories of a batch.

    Args:
        spec: `KIND` or `KIND:PATH`; the path may have fields of the row, such as `clone:{{path}}`.
        base: The working directory of the batch.
        folder: The folder that gets the folders of the rows.

    Raises:
        UsageError: The kind is unknown, or the path has none of its own.
    """

    def __init__(self, spec: str, base: Path, folder: Path) -> None:
        kind, colon, path = spec.partition(":")
        if kind not in get_args(Kind) or (kind == "fresh" and colon) or (colon and not path):
            raise UsageError(
                f"--workdir: expected same, fresh, copy or clone, got {spec!r}",
                hint="A folder follows a colon: --workdir 'clone:{{path}}'.",
            )
        self.kind: Kind = cast("Kind", kind)
        self._path = PromptTemplate(path or ".")
        # A row cannot lead out of the folder that the template begins with.
        self._fixed = fixed = path.partition("{{")[0]
        self._root = os.path.realpath(base / fixed[: fixed.rfind("/") + 1])
        self._is_limited = "{{" in path
        self._base = base
        # Most often all rows have the same folder, and there may be very many.
        self._realpath = lru_cache(maxsize=1)(_realpath)
        self._folder = folder

    @property
    def is_shared(self) -> bool:
        """True if all rows run in one directory, so that a process can run many at once."""
        return self.kind == "same" and not self._is_limited

    @property
    def shared(self) -> Path | None:
        """The folder that all rows run in; None if they have different ones."""
        return Path(self._base, self._fixed) if self.is_shared else None

    def of(self, row: Row, session: str) -> Workdir:
        """The working directory of a row.

        Args:
            row: The row.
            session: The id of its session.

        Raises:
            ConfigError: The folder does not exist or cannot be cloned, or a field leads out of the template's folder.
        """
        rendered = self._path.render(row)
        try:
            source = self._realpath(os.path.join(self._base, rendered))
        except ValueError as error:  # NUL, or half of a surrogate pair
            raise ConfigError(
                f"the folder of row {row.id!r} is not a path: {rendered!r}", location=row.where
            ) from error
        if self._is_limited and not Path(source).is_relative_to(self._root):
            raise ConfigError(
                f"the folder of row {row.id!r} is not in {self._root}: {source}", location=row.where
            )
        if self.kind != "fresh" and not os.path.isdir(source):
            raise ConfigError(
                f"the folder of row {row.id!r} does not exist: {source}", location=row.where
            )
        if self.kind == "clone" and not _is_repository(source):
            raise ConfigError(
                f"the folder of row {row.id!r} is not a git repository: {source}",
                hint="Name the top folder of one (--workdir clone:PATH), or use --workdir copy.",
                location=row.where,
            )
        target = source if self.kind == "same" else str(self._folder / session)
        return Workdir(self.kind, source, target)


def _realpath(path: str) -> str:
    return os.path.realpath(path)


def _exclusions(*folders: Path) -> Callable[[str, Sequence[str]], list[str]]:
    """Return a filter of a copy: it leaves out folders of this batch and of others that run, pipes,
    sockets and devices.
    """
    skipped = {os.path.realpath(folder) for folder in folders}

    def left_out(folder: str, names: Sequence[str]) -> list[str]:
        paths = ((name, os.path.join(os.path.realpath(folder), name)) for name in names)
        return [
            name for name, path in paths if path in skipped or is_special(path) or is_running(path)
        ]

    return left_out


def _is_repository(folder: str) -> bool:
    """Return True if a folder is one that git can clone: the top of a working tree, or a bare repository."""
    files = (".git",), ("HEAD", "objects")
    return any(all(os.path.exists(os.path.join(folder, name)) for name in file) for file in files)


def _clone(source: Path, target: Path) -> None:
    """Clone a repository; its own configuration, filters and hooks are not used."""
    git = find_program("git", str(source))
    if git is None:
        raise AppError("cannot clone: git is not installed")
    argv = (git, "clone", "--quiet", "--no-hardlinks", "--", str(source), str(target))
    env = git_environment(folder=str(source), protocols=["file"])
    try:
        done = run(argv, cwd=target.parent, env=env, seconds=_CLONE_SECONDS)
    except TimedOut as error:
        raise AppError(f"cannot clone {source}: {error}") from error
    if done.code:
        reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        raise AppError(f"cannot clone {source}: {reason}")
