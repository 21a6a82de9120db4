"""Files that are read and replaced safely.

Content is replaced whole or not at all, private files belong to their owner only, nothing is reached
through a link, and a file that a user names for reading neither blocks nor fills the memory.

Where the system can (Linux), new content has no name until it is complete and on disk, so that a
writer that is killed leaves nothing behind. Otherwise, and for the moment in which it replaces an old
file, it is called `.amplifier-….tmp` and locked; the next writer in that folder removes those that are
not locked. A writer may choose another folder for this name; that folder is cleaned at every start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from amplifier_support.named_tuple import NamedTuple

if os.name == "nt":
    import msvcrt
else:
    import fcntl

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_BYTE_CODE = "__pycache__"

# Neither through a link, nor inherited by tools, nor waiting for the other end of a pipe.
_SAFE_FLAGS = sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)


def open_regular(
    path: str | Path, flags: int, mode: int = FILE_MODE, *, dir_fd: int | None = None
) -> int:
    """A descriptor of a regular file; never through a link, never blocking.

    Args:
        path: The file.
        flags: As `os.open` takes them.
        mode: Of a new file, less the umask.
        dir_fd: Descriptor of the folder that a relative `path` starts in.

    Raises:
        OSError: It is a link or not a regular file, or the system refused; `strerror` says which.
    """
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, mode, dir_fd=dir_fd)
    except OSError as error:
        if _is_link(path, dir_fd):
            raise OSError(error.errno, "it is a link", str(path)) from error
        raise
    return _check_regular(descriptor, path)


def _check_regular(descriptor: int, path: str | Path) -> int:
    """Return the descriptor of a regular file; any other is closed.

    Raises:
        OSError: It is not a regular file.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def _is_link(path: str | Path, dir_fd: int | None) -> bool:
    try:
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode)


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file; never through a link, never blocking.

    Raises:
        OSError: It is a link or not a regular file, or the system refused; `strerror` says which.
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def open_private(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
    """Like `open_regular`, but gives a file that is written the mode 0600, whatever the umask and its creator."""
    descriptor = open_regular(path, flags, dir_fd=dir_fd)
    with on_error(os.close, descriptor):
        if hasattr(os, "fchmod") and flags & (os.O_WRONLY | os.O_RDWR):
            os.fchmod(descriptor, FILE_MODE)
    return descriptor


def open_private_in(folder: Path, name: str, flags: int) -> int:
    """Like `open_private`, in a folder that is not a link."""
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_DIRECTORY"):
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "its folder is a link", str(folder))
        return open_private(folder / name, flags)
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if folder.is_symlink():
            raise OSError(error.errno, "its folder is a link", str(folder)) from error
        raise
    try:
        return open_private(name, flags, dir_fd=opened)
    finally:
        os.close(opened)


def make_tree_private(root: Path) -> None:
    """Give folders below `root`, and `root` itself, the mode 0700 and files 0600, or 0700 if executable.

    Folders with Python code get one for byte code: Python would create it with the umask.
    """
    for folder, folders, names in os.walk(root):
        os.chmod(folder, FOLDER_MODE)
        if _BYTE_CODE not in folders and any(name.endswith(".py") for name in names):
            os.mkdir(os.path.join(folder, _BYTE_CODE), FOLDER_MODE)
        for name in names:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, FOLDER_MODE if mode & stat.S_IXUSR else FILE_MODE)


def make_private_folder(path: Path) -> None:
    """Create `path` and what is missing above it, each 0700 and each on disk before this returns.

    Raises:
        OSError: Something else is in the way, or the system refused.
    """
    missing = takewhile(lambda folder: not folder.exists(), (path, *path.parents))
    for folder in reversed([*missing]):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        folder.chmod(FOLDER_MODE)
        sync_folder(folder.parent)


def sync_folder(path: str | Path) -> None:
    """Flush the names in `path` to disk."""
    if os.name == "nt":
        return  # Directories cannot be opened there; NTFS journals names by itself.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


NO_TEMPORARY_FOLDER = "no folder for temporary files can be written to"


class NoTemporaryFolder(OSError):
    """No folder can be used for temporary files."""


def temporary_folder() -> str:
    """The folder for temporary files.

    Raises:
        NoTemporaryFolder: None can be written to.
    """
    chosen = os.environ.get("TMPDIR", "/tmp")
    if os.name == "posix" and os.path.isdir(chosen) and os.access(chosen, os.W_OK | os.X_OK):
        return os.path.abspath(chosen)
    try:
        # It tries more folders, each by writing a file, which a kill would leave behind.
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise NoTemporaryFolder(NO_TEMPORARY_FOLDER) from None


def open_locked(path: str | Path) -> int | None:
    """Open the file `path`, created with mode 0600, and lock it as `try_lock` does.

    Returns:
        A descriptor, whose closing releases the lock; None if another one holds it.

    Raises:
        OSError: It is a link or not a regular file, or the system refused; `strerror` says which.
    """
    return lock_at(path, open_private(path, os.O_RDWR | os.O_CREAT))


def lock_at(path: str | Path, descriptor: int) -> int | None:
    """Lock the open file or folder at `path` as `try_lock` does.

    Returns:
        The descriptor; None if another process holds the lock or `path` names another file by now: then it is closed.

    Raises:
        OSError: The system refused; the descriptor is closed.
    """
    try:
        if try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    except FileNotFoundError:
        pass  # Removed by its last holder.
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file for this process alone, until it is closed or its holder dies.

    Args:
        descriptor: The file.
        shared: Whether others may hold it in the same way, where the system has that.

    Returns:
        False if another one holds it.
    """
    if os.name == "nt":
        return _try_lock_windows(descriptor)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_windows(descriptor: int) -> bool:
    try:
        # One byte far beyond the end: others cannot read locked bytes there.
        os.lseek(descriptor, 1 << 40, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return False
    return True


_TEMPORARY = ".amplifier-{}.tmp"
_TEMPORARY_NAME = re.compile(r"\.amplifier-[0-9a-f]{16}\.tmp")
_UNNAMED: int | None = getattr(os, "O_TMPFILE", None)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_cleaned: set[tuple[int, int]] = set()
"""Folders, as device and inode, in which this process has removed what others left."""


def write_private(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file by one for its owner only (0600).

    Args:
        path: The file.
        data: The whole content.
        durable: Whether it is on disk when this returns; otherwise a power failure may restore what was there.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    new = _New(data, FILE_MODE, FILE_MODE, True, keeps_owner=False, durable_name=durable)
    _write(path, new, None)


def write_atomically(
    path: str | Path,
    data: bytes,
    *,
    mode: int = FILE_MODE,
    permissions: int | None = None,
    durable: bool = True,
    folder: int | None = None,
    staging: str | None = None,
) -> None:
    """Replace a file; of several writers the last one wins.

    Args:
        path: The file, not a link; an existing one keeps its owner and mode.
        data: The whole content.
        mode: Of a new file, less the umask.
        permissions: Of the file, whatever it had before and whatever the umask.
        durable: Whether it is on disk when this returns.
        folder: Descriptor of the file's folder; `path` is then a name in it.
        staging: Folder for the temporary name, used if it is on the same file system.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    _write(path, _New(data, mode, permissions, durable, True, staging), folder)


def create_atomically(
    path: str | Path, data: bytes | Callable[[], Iterable[bytes]], *, mode: int = FILE_MODE
) -> None:
    """Write a new file, on disk when this returns.

    Args:
        path: The file.
        data: The whole content, or returns its pieces; it may be called twice.
        mode: Less the umask.

    Raises:
        FileExistsError: There is a file or a link of this name.
        OSError: The system refused; there is no such file.
    """
    new = _New(data, mode, None, durable=True, keeps_owner=False, replaces=False)
    _write(path, new, None)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left in `folder`. Raises nothing."""
    with contextlib.suppress(OSError), _open_folder(str(folder), None) as opened:
        _remove_abandoned(opened, once=False)


class _Place(NamedTuple):
    """A file's folder and name, and where the system takes them its folder's descriptor."""

    parent: str
    name: str
    folder: int | None

    def path(self, name: str) -> str:
        """`name` in the folder, for a call that takes its descriptor, too."""
        return name if self.folder is not None else os.path.join(self.parent, name)


class _New(NamedTuple):
    data: bytes | Callable[[], Iterable[bytes]]
    mode: int
    permissions: int | None
    durable: bool
    keeps_owner: bool
    staging: str | None = None
    replaces: bool = True
    durable_name: bool = True


def _write(path: str | Path, new: _New, folder: int | None) -> None:
    parent, name = os.path.split(path)
    with _open_folder(parent or ".", folder) as opened:
        _remove_abandoned(opened, once=True)
        place = _Place(parent, name, opened)
        if not _write_unnamed(place, new):
            give_name = _rename if new.replaces else _link
            give_name(_write_temporary(place, new), place)
        if new.durable and new.durable_name and opened is not None:
            os.fsync(opened)


@contextlib.contextmanager
def _open_folder(parent: str, folder: int | None) -> Generator[int | None]:
    """A descriptor of the folder that can be read and synced; None where there are none."""
    if not _BY_DESCRIPTOR:
        yield None
        return
    # The given one may be good for finding names only (O_PATH).
    descriptor = os.open("." if folder is not None else parent, _FOLDER, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_unnamed(place: _Place, new: _New) -> bool:
    """Return True if the file could be written without a name until it is complete."""
    descriptor = _open_unnamed(place, new)
    if descriptor is None:
        return False
    try:
        is_new = _fill(descriptor, place, new)
        return _give_name(descriptor, place, new, is_new=is_new)
    finally:
        os.close(descriptor)


def _open_unnamed(place: _Place, new: _New) -> int | None:
    if _UNNAMED is None or place.folder is None:
        return None
    try:
        return os.open(".", os.O_WRONLY | _UNNAMED, new.mode, dir_fd=place.folder)
    except OSError:
        return None


def _give_name(descriptor: int, place: _Place, new: _New, *, is_new: bool) -> bool:
    source = f"/proc/self/fd/{descriptor}"
    try:
        if is_new or not new.replaces:
            try:
                # A link never replaces a file.
                os.link(source, place.name, dst_dir_fd=place.folder)
                return True
            except FileExistsError:
                if not new.replaces:
                    raise
        if new.staging is not None and _rename_from(new.staging, source, place):
            return True
        temporary = _temporary_name()
        os.link(source, temporary, dst_dir_fd=place.folder)
    except FileNotFoundError:
        return False  # No /proc to reach the file by.
    _rename(temporary, place)
    return True


def _rename_from(staging: str, source: str, place: _Place) -> bool:
    """Return True if the file could get its name by way of another folder."""
    temporary = _temporary_name()
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(staging, _FOLDER)
            opened.callback(os.close, folder)
            # Only with a descriptor does `link` follow the link in /proc.
            os.link(source, temporary, dst_dir_fd=folder)
        except OSError:
            return False  # It is on another file system, or gone.
        try:
            os.replace(temporary, place.name, src_dir_fd=folder, dst_dir_fd=place.folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
    return True


def _write_temporary(place: _Place, new: _New) -> str:
    """The name of a temporary file that has the content."""
    temporary = _temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = open_regular(place.path(temporary), flags, new.mode, dir_fd=place.folder)
    with on_error(os.unlink, place.path(temporary), dir_fd=place.folder):
        try:
            _fill(descriptor, place, new)
        finally:
            os.close(descriptor)
    return temporary


def _fill(descriptor: int, place: _Place, new: _New) -> bool:
    """Write the content; returns whether there is no old file."""
    # On a file system without locks nothing is taken for abandoned.
    with contextlib.suppress(OSError):
        try_lock(descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.writelines([new.data] if isinstance(new.data, bytes) else new.data())
    try:
        path = place.path(place.name)
        old: os.stat_result | None = os.stat(path, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if hasattr(os, "fchmod"):
        _set_owner_and_mode(descriptor, old, new)
    if new.durable:
        os.fsync(descriptor)
    return old is None


def _set_owner_and_mode(descriptor: int, old: os.stat_result | None, new: _New) -> None:
    permissions = new.permissions
    if old is not None and stat.S_ISREG(old.st_mode):
        status = os.fstat(descriptor)
        owner = (old.st_uid, old.st_gid)
        if new.keeps_owner and owner != (status.st_uid, status.st_gid):
            # Only root may give files away; anyone else replaces the file by one of their own.
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, *owner)
        if permissions is None:
            permissions = stat.S_IMODE(old.st_mode)
    if permissions is not None:
        os.fchmod(descriptor, permissions)


def _rename(temporary: str, place: _Place) -> None:
    folder = place.folder
    source, target = place.path(temporary), place.path(place.name)
    try:
        os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        # A signal may have come after it was renamed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source, dir_fd=folder)
        raise


def _link(temporary: str, place: _Place) -> None:
    source, target = place.path(temporary), place.path(place.name)
    try:
        os.link(source, target, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        if os.path.lexists(os.path.join(place.parent, place.name)):
            raise FileExistsError(target) from None
        os.rename(source, target, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        return
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source, dir_fd=place.folder)


def _temporary_name() -> str:
    return _TEMPORARY.format(os.urandom(8).hex())


def _remove_abandoned(folder: int | None, *, once: bool) -> None:
    """Remove temporary files whose writer is gone.

    Args:
        folder: Descriptor of the folder; None where there are none.
        once: Do nothing if this process has done it before.
    """
    if folder is None:
        return  # A system where files that are open cannot be removed.
    status = os.fstat(folder)
    key = (status.st_dev, status.st_ino)
    if once and key in _cleaned:
        return
    _cleaned.add(key)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _TEMPORARY_NAME.fullmatch(entry.name)]
        for name in names:
            with contextlib.suppress(OSError):
                descriptor = open_regular(name, os.O_RDONLY, dir_fd=folder)
                try:
                    if try_lock(descriptor):
                        os.unlink(name, dir_fd=folder)
                finally:
                    os.close(descriptor)


NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# With O_PATH a folder that may be entered but not listed can still be walked through.
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | NOFOLLOW


def is_below(path: str, folder: str) -> bool:
    """Return True if an absolute path is a folder or inside it; links are not followed."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def open_below(folder: int, path: str) -> int:
    """A descriptor of a regular file, for reading.

    Args:
        folder: Descriptor of the folder.
        path: The file's path below it.

    Raises:
        OSError: A part of the path is a link or missing, or the file is not a regular one.
    """
    parent, _, name = path.rpartition("/")
    with folder_below(folder, parent) as opened:
        descriptor = os.open(name, os.O_RDONLY | _SAFE_FLAGS, dir_fd=opened)
    return _check_regular(descriptor, path)


@contextlib.contextmanager
def folder_below(folder: int, path: str, *, create: bool = False) -> Generator[int]:
    """A descriptor of a folder; `folder` itself if the path is empty.

    Args:
        folder: Descriptor of the folder to start from.
        path: The path below it.
        create: Create missing folders on the way.

    Raises:
        OSError: A part of the path is a link or, unless it is created, missing.
    """
    with contextlib.ExitStack() as opened:
        for name in filter(None, path.split("/")):
            if name in (".", ".."):
                raise OSError(errno.EINVAL, "it is not a path below a folder", path)
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            folder = os.open(name, FOLDER, dir_fd=folder)
            opened.callback(os.close, folder)
        yield folder


@contextlib.contextmanager
def folder_at(path: str, *, create: bool = False) -> Generator[int | None]:
    """A descriptor of the folder at an absolute path without links; None where there are none.

    Args:
        path: Its path.
        create: Create missing folders on the way.

    Raises:
        OSError: A part of the path is a link or, unless it is created, missing.
    """
    if not _BY_DESCRIPTOR:
        if create:
            os.makedirs(path, exist_ok=True)
        yield None
        return
    top = os.open("/", FOLDER)
    try:
        with folder_below(top, path, create=create) as folder:
            yield folder
    finally:
        os.close(top)


def open_inside(root: str, path: str) -> int:
    """A descriptor of the regular file `path`, for reading; links that stay inside `root` are followed.

    Args:
        root: A folder.
        path: Absolute, or relative to `root`.

    Raises:
        ValueError: It is outside.
        OSError: It cannot be opened.
    """
    real_root = os.path.realpath(root)
    real = os.path.realpath(os.path.join(real_root, path))
    if os.path.commonpath([real, real_root]) != real_root:
        raise ValueError(f"{path} is outside {root}")
    if not _BY_DESCRIPTOR:
        return os.open(real, os.O_RDONLY | _SAFE_FLAGS)
    folder = os.open(real_root, FOLDER)
    try:
        return open_below(folder, os.path.relpath(real, real_root))
    finally:
        os.close(folder)


STREAM_SECONDS = 10
"""Seconds to wait for each piece from a pipe."""


def open_to_read(path: str | Path) -> int:
    """A descriptor of a regular file, through links; never blocking.

    Raises:
        OSError: It is a folder, a pipe or a device, or the system refused; `strerror` says which.
    """
    descriptor, _ = _open(path)
    return _check_regular(descriptor, path)


def read_file(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file, at most `max_bytes`.

    Raises:
        OSError: As `open_to_read` does.
    """
    with open(open_to_read(path), "rb") as file:
        return file.read(max_bytes)


def read_file_or_stream(path: str | Path, max_bytes: int) -> bytes:
    """Like `read_file`, but also reads a pipe or a device, such as `/dev/fd/63`.

    Raises:
        OSError: It cannot be read, or nothing comes for `STREAM_SECONDS`.
    """
    descriptor, kind = _open(path)
    with open(descriptor, "rb") as file:
        return file.read(max_bytes) if kind == stat.S_IFREG else _read_stream(descriptor, max_bytes)


def _open(path: str | Path) -> tuple[int, int]:
    # Does not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFDIR:
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return descriptor, kind


def _read_stream(descriptor: int, left: int) -> bytes:
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while left > 0:
        if not poll.poll(STREAM_SECONDS * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"no data for {STREAM_SECONDS} s")
        part = os.read(descriptor, min(left, 1 << 16))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def is_special(path: str) -> bool:
    """Return True if there is a pipe, a socket or a device, which a copy leaves out."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:  # reported by the copy
        return False
    return kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def describe_reason(error: OSError) -> str:
    """Why a folder cannot be copied; if several files failed, the reason of the first."""
    if isinstance(error, shutil.Error) and error.args[0]:
        path, _, reason = error.args[0][0]
        # The text of a system error, which ends with the path.
        match = re.match(r"\[Errno \d+\] (.*?): '", reason)
        return f"{path}: {match[1] if match else reason}"
    return error.strerror or str(error)


@contextlib.contextmanager
def system_errors_as(kind: Callable[..., Exception], what: str, **details: Any) -> Generator[None]:
    """Raise `kind` for a system error in the block; its message is `what` with the reason.

    Args:
        kind: The type of the error.
        what: What cannot be done, such as `cannot read FILE`.
        **details: Keyword arguments for `kind`.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {describe_reason(error)}", **details) from error


@contextlib.contextmanager
def on_error(undo: Callable[..., object], *args: Any, **kwargs: Any) -> Generator[None]:
    """Call `undo` with these arguments if the block raises anything."""
    try:
        yield
    except BaseException:
        undo(*args, **kwargs)
        raise
