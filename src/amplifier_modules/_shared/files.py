"""Keeps file access inside the folders it was granted, and reads and writes whole files there.

    PathError                    a path the guard rejects
    ├── InvalidPath              not a path at all: empty, NUL, '~'
    ├── OutsideRoots             it is, or a link on the way leads, outside the granted folders
    └── ProtectedPath            inside, but version control, settings or shell start-up

Where the system has descriptor-relative calls, a path is walked one component at a time from an
open folder, and no call ever follows a link: a link is read and its target walked like any other
path. So what was checked is what is opened, even if another process renames files in between.
Elsewhere (Windows) the path is resolved first and opened by its resolved name, which a race
between the two can defeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from amplifier_support import journal
from amplifier_support.files import (
    FOLDER,
    NOFOLLOW,
    folder_below,
    make_private_folder,
    open_private,
    open_regular,
    write_atomically,
)
from amplifier_support.run_later import SHELL_FILES
from amplifier_support.session_capabilities import WORKING_DIR

_PROTECTED = frozenset({".git", ".amplifier", "git~1", "config.fish"})
# A macOS file system compares names without these characters, so `.g\u200cit` is `.git` there.
_IGNORED = dict.fromkeys(
    [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)


def protected_name(parts: Iterable[str]) -> str | None:
    """The first of `parts` that needs a grant of its own for writing, or None.

    Names are compared as the most lenient file systems do: without case, invisible characters,
    and what Windows drops at the end.
    """
    below_config = False
    for part in parts:
        name = part.translate(_IGNORED).casefold().partition(":")[0].rstrip(". ")
        if name in _PROTECTED or name in SHELL_FILES:
            return part
        if below_config and name == "fish":
            return part
        below_config = name == ".config"
    return None


_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.readlink in os.supports_dir_fd
_MAX_LINKS = 40


class PathError(Exception):
    """A path the guard rejects; the message has the path, the reason and a fix."""


class InvalidPath(PathError):
    """The text is not a path."""


class OutsideRoots(PathError):
    """The path is outside the granted folders, or a link on the way leads there."""

    denies_call = True


class ProtectedPath(PathError):
    """The path needs a separate grant for writing."""

    denies_call = True


class Location:
    """A place inside the granted folders; a context manager that holds its folder open.

    Attributes:
        path: Absolute, without links.
        dir_fd: Descriptor of the folder, for calls with `name`; None where the system has no
            such calls, and `name` is then the whole path.
        name: Name inside the folder; "." for a granted folder itself.
    """

    def __init__(self, path: str, dir_fd: int | None, name: str) -> None:
        self.path = path
        self.dir_fd = dir_fd
        self.name = name

    def __enter__(self) -> Location:
        return self

    def __exit__(self, *_: object) -> None:
        if self.dir_fd is not None:
            os.close(self.dir_fd)
            self.dir_fd = None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """`os.open` of this place, never through a link. Raises OSError."""
        return os.open(self.name, flags | NOFOLLOW, mode, dir_fd=self.dir_fd)

    def stat(self) -> os.stat_result:
        """The `os.stat` of this place, never through a link. Raises OSError."""
        return os.stat(self.name, dir_fd=self.dir_fd, follow_symlinks=False)


class _Root:
    __slots__ = ("explicit", "given", "real")

    def __init__(self, path: str, *, explicit: bool) -> None:
        self.given = _parts(os.path.abspath(path))
        self.real = _parts(os.path.realpath(path))
        self.explicit = explicit


def _folded(denied: _Root) -> tuple[tuple[str, ...], ...]:
    # Compared without case: on some file systems these are the same name.
    return tuple(tuple(part.casefold() for part in parts) for parts in (denied.given, denied.real))


class PathGuard:
    """Turns the paths a model names into places inside granted folders.

    Args:
        roots: Granted folders or single files, absolute or relative to `base`. None grants
            `base` itself, which is then no grant of the protected names in its own path.
        base: Absolute folder that relative paths start from.
        writing: Refuse protected names (`.git`, `.amplifier`, shell start-up files) unless a
            root names them.
        setting: Name of the setting that would grant more, for messages.
        denied: Folders or files inside the granted ones that are refused when writing.
        by_descriptor: Walk by descriptor; by default where the system can.
    """

    def __init__(
        self,
        roots: Sequence[str] | None,
        *,
        base: str,
        writing: bool,
        setting: str,
        denied: Sequence[str] = (),
        by_descriptor: bool = _BY_DESCRIPTOR,
    ) -> None:
        self.base = os.path.abspath(base)
        self._writing = writing
        self._setting = setting
        self._by_descriptor = by_descriptor
        if roots is None:
            self._roots = [_Root(self.base, explicit=False)]
        else:
            self._roots = [_Root(os.path.join(self.base, r), explicit=True) for r in roots]
        self._denied = [_folded(_Root(os.path.join(self.base, d), explicit=True)) for d in denied]
        self._entries = {root.real for root in self._roots}
        self.real_base = _parts(os.path.realpath(self.base))

    def also(self, folder: str) -> PathGuard:
        """This guard, for one more folder."""
        guard, root = copy(self), _Root(folder, explicit=True)
        guard._roots = [*self._roots, root]
        guard._entries = {*self._entries, root.real}
        return guard

    def locate(self, path: str, *, create_parents: bool = False) -> Location:
        """The place `path` names, with links resolved; it need not exist.

        `..` is taken lexically in `path` itself, and as the system does in the targets of links.

        Args:
            path: Absolute, or relative to `base`. `~` is not expanded.
            create_parents: Create missing folders on the way.

        Raises:
            InvalidPath: It is empty, has a NUL, or starts with `~/`.
            OutsideRoots: It ends, or a link leads, outside the granted folders.
            ProtectedPath: Writing there needs a grant that names it.
            OSError: The system's own reasons: a missing folder, permissions, too many links.
        """
        self._check_text(path)
        absolute = os.path.normpath(os.path.join(self.base, path))
        if not self._by_descriptor:
            return self._locate_by_name(path, absolute, create_parents)
        parts = self.resolve_root_name(_parts(absolute))
        if self.contains(parts):
            # The walk ends with the same check, but must not create folders before it.
            self.check_protected(path, parts)
        walk = _Walk(self, path, create_parents)
        try:
            return walk.run(parts)
        finally:
            walk.close()

    # -- used by the walk ------------------------------------------------------------------

    def resolve_root_name(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """`parts` with a root's name as it was given replaced by its real one."""
        for root in self._roots:
            if root.given != root.real and parts[: len(root.given)] == root.given:
                return root.real + parts[len(root.given) :]
        return parts

    def is_root(self, parts: tuple[str, ...]) -> bool:
        return parts in self._entries

    def contains(self, parts: tuple[str, ...]) -> bool:
        return any(parts[: len(root.real)] == root.real for root in self._roots)

    def check_protected(self, path: str, parts: tuple[str, ...]) -> None:
        """Raise `ProtectedPath` if `parts` may not be written without a separate grant."""
        if not self._writing:
            return
        folded = tuple(part.casefold() for part in parts)
        if any(folded[: len(denied)] == denied for pair in self._denied for denied in pair):
            raise ProtectedPath(f"{path!r} is denied by denied_write_paths in the tool's config")
        granted = max(
            (len(r.real) for r in self._roots if r.explicit and parts[: len(r.real)] == r.real),
            default=0,
        )
        name = protected_name(parts[granted:])
        if name is not None:
            raise ProtectedPath(
                f"{path!r} is protected: writing to {name!r} needs a grant of its own "
                f"(list it in {self._setting} in the tool's config)"
            )

    def outside(self, path: str) -> OutsideRoots:
        roots = ", ".join(_joined(root.real) for root in self._roots) or "none"
        return OutsideRoots(
            f"{path!r} is outside the folders this tool may use: {roots} "
            f"(grant more with {self._setting} in the tool's config)"
        )

    # -- details ---------------------------------------------------------------------------

    def _check_text(self, path: str) -> None:
        if not path:
            raise InvalidPath("the path is empty")
        if "\0" in path:
            raise InvalidPath("the path has a NUL character")
        if path == "~" or path.startswith("~/"):
            raise InvalidPath(f"{path!r}: '~' is not expanded; name a path below {self.base}")
        try:
            os.fsencode(path)
        except UnicodeEncodeError as error:
            raise InvalidPath("the path has characters no file name can have") from error

    def _locate_by_name(self, path: str, absolute: str, create_parents: bool) -> Location:
        real = os.path.realpath(absolute)
        if ":" in os.path.splitdrive(real)[1] and os.name == "nt":
            raise InvalidPath(f"{path!r}: ':' is not allowed in file names")
        if not self.contains(_parts(real)):
            raise self.outside(path)
        self.check_protected(path, _parts(real))
        if create_parents:
            os.makedirs(os.path.dirname(real), exist_ok=True)
            if os.path.realpath(absolute) != real:
                raise self.outside(path)
        return Location(real, None, real)


class _Walk:
    """One walk from the top to a place, as the system would resolve it, but inside the roots.

    Above the roots nothing is opened but the working directory, if a root is below it: those
    components are only followed by name until a root is reached. From there on every component is
    opened relative to the one before.
    """

    def __init__(self, guard: PathGuard, path: str, create_parents: bool) -> None:
        self._guard = guard
        self._path = path
        self._create = create_parents
        self._here: list[str] = []
        self._folders: list[int] = []
        self._pending: list[str] = []
        self._links = 0

    def run(self, parts: tuple[str, ...]) -> Location:
        self._push(parts)
        if self._guard.is_root(()):
            self._enter_root()
        while self._pending:
            name = self._pending.pop()
            if name == "..":
                self._leave()
            elif not self._folders:
                self._here.append(name)
                if self._guard.is_root(tuple(self._here)) and not self._enter_root():
                    return self._file_root()
            elif self._pending:
                self._enter(name)
            elif not self._follow(name):
                return self._found(name)
        return self._found(None)

    def close(self) -> None:
        for folder in self._folders:
            os.close(folder)
        self._folders = []

    def _push(self, parts: Iterable[str]) -> None:
        self._pending.extend(reversed([part for part in parts if part not in ("", ".")]))

    def _leave(self) -> None:
        if self._here:
            self._here.pop()
        if self._folders:
            os.close(self._folders.pop())

    def _enter_root(self) -> bool:
        """Open the root `_here`; False when it is not a folder."""
        root = tuple(self._here)
        try:
            self._folders.append(self._open_root(root))
        except NotADirectoryError:
            return False
        except FileNotFoundError:
            if not self._create:
                raise
            if not self._pending:
                return False
            self._folders.append(self._open_root(root, create=True))
        return True

    def _open_root(self, parts: tuple[str, ...], *, create: bool = False) -> int:
        """Open a root, or the folder of one that is a file.

        Below the working directory no link is followed: since the root was resolved, a command may
        have replaced a folder above it.
        """
        base = self._guard.real_base
        known = base if parts[: len(base)] == base else parts
        if create:
            os.makedirs(_joined(known), exist_ok=True)
        top = os.open(_joined(known), FOLDER)
        try:
            with folder_below(top, "/".join(parts[len(known) :]), create=create) as folder:
                return os.dup(folder)
        finally:
            os.close(top)

    def _file_root(self) -> Location:
        """The location of a root that is a single file."""
        if self._pending:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        name = self._here.pop()
        self._folders.append(self._open_root(tuple(self._here)))
        return self._found(name)

    def _enter(self, name: str) -> None:
        """Go into the folder `name`, or replace it by its target when it is a link."""
        try:
            self._folders.append(self._open(name))
        except OSError as error:
            # Which of the two a link gives depends on the system and on O_PATH.
            if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not self._follow(name):
                raise
            return
        self._here.append(name)

    def _open(self, name: str) -> int:
        folder = self._folders[-1]
        try:
            return os.open(name, FOLDER, dir_fd=folder)
        except FileNotFoundError:
            if not self._create:
                raise
        self._guard.check_protected(self._path, (*self._here, name))
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass  # Another process was faster, or it is a dangling link: opening it will show.
        return os.open(name, FOLDER, dir_fd=folder)

    def _follow(self, name: str) -> bool:
        """Put the target of the link `name` in its place; False when it is not a link."""
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return False
            raise
        self._links += 1
        if self._links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        if target.startswith("/"):
            self.close()
            self._here = []
            self._push(self._guard.resolve_root_name(_parts(os.path.normpath(target))))
            if self._guard.is_root(()):
                self._enter_root()
        else:
            self._push(target.split("/"))
        return True

    def _found(self, name: str | None) -> Location:
        if not self._folders:
            raise self._guard.outside(self._path)
        parts = tuple(self._here) if name is None else (*self._here, name)
        self._guard.check_protected(self._path, parts)
        return Location(_joined(parts), self._folders.pop(), "." if name is None else name)


def _parts(path: str) -> tuple[str, ...]:
    drive, rest = os.path.splitdrive(path)
    names = [part for part in rest.split(os.sep) if part]
    return (os.path.normcase(drive), *names) if drive else tuple(names)


def _joined(parts: Iterable[str]) -> str:
    if os.name == "nt":
        return os.sep.join(parts)
    return "/" + "/".join(parts)


class Grants:
    """The folders that a setting grants, resolved once for each working directory.

    They are resolved when this is created, for the session's working directory: a command that runs
    later may replace a granted folder with a link.

    Args:
        coordinator: The coordinator of the session.
        paths: Value of the setting; `~` is expanded. None grants the working directory.
        setting: Name of the setting, for messages.
        writing: See `PathGuard`.
        denied: Value of the setting that excludes folders; see `PathGuard`.
    """

    def __init__(
        self,
        coordinator: Any,
        paths: Sequence[str] | None,
        *,
        setting: str,
        writing: bool = False,
        denied: Sequence[str] = (),
    ) -> None:
        self._coordinator = coordinator
        self._roots = None if paths is None else [os.path.expanduser(path) for path in paths]
        self._denied = [os.path.expanduser(path) for path in denied]
        self._setting = setting
        self._writing = writing
        self._guards = {self.base: self._resolve()}

    @property
    def base(self) -> str:
        """The working directory, absolute."""
        return WORKING_DIR.of(self._coordinator) or os.getcwd()

    @property
    def guard(self) -> PathGuard:
        """The guard for the folders."""
        base = self.base
        if base not in self._guards:
            self._guards[base] = self._resolve()
        return self._guards[base]

    def _resolve(self) -> PathGuard:
        return PathGuard(
            self._roots,
            base=self.base,
            writing=self._writing,
            setting=self._setting,
            denied=self._denied,
        )


# -- whole files ---------------------------------------------------------------------------


class FileProblem(Exception):
    """The operation does not make sense on what is there; the message says why."""


class NotAFile(FileProblem):
    """The path is a folder, a device or a pipe."""


class FileTooLarge(FileProblem):
    """The file is larger than the operation takes at once."""


_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def open_guarded(location: Location) -> Generator[tuple[int, int]]:
    """Open the file at `location`: descriptor and size in bytes.

    Raises:
        NotAFile: Something else is there; it is not touched.
        OSError: It cannot be opened.
    """
    # Looked at first, because opening a device may already do something.
    _require_file(location.stat())
    # Not blocking, so that a pipe put there meanwhile cannot hold the session up.
    descriptor = location.open(_READ | _BINARY)
    try:
        status = os.fstat(descriptor)
        _require_file(status)
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def read_whole(location: Location, limit: int) -> bytes:
    """The bytes of a file of at most `limit` bytes. Raises NotAFile, FileTooLarge, OSError."""
    with open_guarded(location) as (descriptor, size):
        if size > limit:
            raise FileTooLarge(f"it has {size} bytes, more than {limit}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()


def exists(location: Location) -> bool:
    """Return True if a file is there. Raises NotAFile when it is something else."""
    try:
        _require_file(location.stat())
    except FileNotFoundError:
        return False
    return True


def write_whole(
    location: Location, data: bytes, mode: int | None = None, *, staging: str | None = None
) -> None:
    """Replace or create the file at `location` atomically.

    Mode and, where allowed, owner of an old file are kept. The bytes reach the disk when the
    system writes them, as with any program's files.

    Args:
        location: A place in a folder that is there.
        data: All of the new content.
        mode: Permissions to give it in place of those of the old file, or the usual ones.
        staging: See `write_atomically`.

    Raises:
        NotAFile: The path is not a regular file.
        OSError: It cannot be written; the old file is untouched.
    """
    exists(location)  # raises NotAFile
    write_atomically(
        location.name,
        data,
        mode=0o666,
        permissions=mode,
        durable=False,
        folder=location.dir_fd,
        staging=staging,
    )


def _require_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotAFile("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile("it is a device, pipe or socket, not a file")


T = TypeVar("T")

_INLINE = 1024 * 1024


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run `work` at once when it handles few bytes, which is faster, else in a thread."""
    return work() if size <= _INLINE else await in_thread(work)


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A cancellation waits for it, since it uses the caller's descriptors."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


_MAX_BYTES = 8_000_000


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line, in one write, so that several processes may do so.

    Raises:
        OSError: It cannot be written, or the path is a link or not a regular file.
    """
    make_private_folder(path.parent)
    file = open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        torn = journal.ends_inside_line(file)
        line = json.dumps(record).encode("ascii") + b"\n"
        rest = memoryview(b"\n" + line if torn else line)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def read_records(path: Path, most_bytes: int = _MAX_BYTES) -> list[dict[str, Any]]:
    """The complete lines, up to so many bytes; none if the file is missing.

    Raises:
        OSError: It cannot be read, or another user could have written it.
    """
    try:
        file = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(file, "rb") as stream:
        state = os.fstat(stream.fileno())
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            raise PermissionError(f"{path} may be written by others; make it yours and 0600")
        data = stream.read(most_bytes)
    return journal.readable_records(data)
