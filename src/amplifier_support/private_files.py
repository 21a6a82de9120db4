"""Files and folders for their owner only: never through a planted link, synced to disk where documented."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

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
    """Like `open_regular`, but sets the file's mode to 0600 regardless of the umask and its creator."""
    descriptor = open_regular(path, flags, dir_fd=dir_fd)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
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
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
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
    import tempfile

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
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
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


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process alone, until it is closed or its holder dies.

    Returns:
        False if another one holds it.
    """
    if os.name == "nt":
        return _try_lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
