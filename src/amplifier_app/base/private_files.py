"""Writing files that hold what people said: owner-only, through no link, whole or not at all."""

import contextlib
import os
import stat
from pathlib import Path

from amplifier_app.base.errors import SessionError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

# Neither through a link, nor inherited by tools, nor waiting for the other end of a pipe.
_CAREFUL = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK"))

_UNFINISHED = ".{}.new"


def make_private_directory(path: Path) -> None:
    """Create `path` and what is missing above it, each 0700 and each on disk before this returns.

    Raises:
        SessionError: There is something else in the way, or the disk refused.
    """
    try:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            folder.chmod(DIRECTORY_MODE)
            sync_directory(folder.parent)
    except OSError as error:
        raise SessionError(f"Cannot create {path}: {error.strerror}") from error
    if path.is_symlink() or not path.is_dir():
        raise SessionError(
            f"{path} is a link or no folder; sessions are not stored through links",
            hint="Remove it, or point AMPLIFIER_HOME at a folder of your own.",
        )


def sync_directory(path: Path) -> None:
    """Have the names in `path` on disk."""
    if os.name == "nt":
        return  # Directories cannot be opened there; NTFS journals names by itself.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file `path`, created 0600 whatever the umask, never through a link.

    Raises:
        SessionError: It is a link or no file, or the disk refused.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, flags | _CAREFUL, FILE_MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is no file")
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, FILE_MODE)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        why = "it is a link" if path.is_symlink() else error.strerror
        raise SessionError(f"Cannot open {path}: {why}") from error
    return descriptor


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8), whole or not at all. There must be one writer only.

    Raises:
        SessionError: The disk refused; what was there is still there.
    """
    unfinished = path.with_name(_UNFINISHED.format(path.name))
    descriptor = open_private(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise SessionError(f"Cannot write {path}: {error.strerror}") from error


def remove_unfinished(folder: Path) -> None:
    """Take away what a writer that was killed left in `folder`."""
    for leftover in folder.glob(_UNFINISHED.format("*")):
        with contextlib.suppress(OSError):
            leftover.unlink()
