"""Files and folders for their owner only: never through a planted link, and on disk when said to be."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

FOLDER_MODE = 0o700
FILE_MODE = 0o600

# Neither through a link, nor inherited by tools, nor waiting for the other end of a pipe.
_SAFE_FLAGS = sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)


def open_regular(path: str | Path, flags: int, mode: int = FILE_MODE) -> int:
    """A descriptor of a regular file; never through a link, never blocking.

    Args:
        path: The file.
        flags: As `os.open` takes them.
        mode: Of a new file, less the umask.

    Raises:
        OSError: It is a link or not a regular file, or the system refused; `strerror` says which.
    """
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, mode)
    except OSError as error:
        if os.path.islink(path):
            raise OSError(error.errno, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file; never through a link, never blocking.

    Raises:
        OSError: It is a link or not a regular file, or the system refused; `strerror` says which.
    """
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def open_private(path: str | Path, flags: int) -> int:
    """Like `open_regular`, but sets the file's mode to 0600 regardless of the umask and its creator."""
    descriptor = open_regular(path, flags)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE_MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


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


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process alone, until it is closed or its holder dies.

    Returns:
        False if another one holds it.
    """
    try:
        import fcntl
    except ImportError:
        return _try_lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_windows(descriptor: int) -> bool:
    import msvcrt

    try:
        # One byte far behind the end: locked bytes cannot be read by others there.
        os.lseek(descriptor, 1 << 40, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return False
    return True
