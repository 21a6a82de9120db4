"""Writing files that hold what people said: owner-only, through no link, whole or not at all.

What `amplifier_support` does, with errors of sessions.
"""

from pathlib import Path

from amplifier_app.base.errors import SessionError
from amplifier_support import atomic_write, private_files
from amplifier_support.atomic_write import remove_unfinished
from amplifier_support.private_files import FOLDER_MODE, sync_folder

__all__ = [
    "FOLDER_MODE",
    "make_private_folder",
    "open_private",
    "remove_unfinished",
    "sync_folder",
    "write_private",
]


def make_private_folder(path: Path) -> None:
    """Create `path` and what is missing above it, each 0700 and each on disk before this returns.

    Raises:
        SessionError: There is something else in the way, or the disk refused.
    """
    try:
        private_files.make_private_folder(path)
    except OSError as error:
        raise SessionError(f"Cannot create {path}: {error.strerror}") from error
    if path.is_symlink() or not path.is_dir():
        raise SessionError(
            f"{path} is a link or no folder; sessions are not stored through links",
            hint="Remove it, or point AMPLIFIER_HOME at a folder of your own.",
        )


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file `path`, created 0600 whatever the umask, never through a link.

    Raises:
        SessionError: It is a link or no file, or the disk refused.
    """
    try:
        return private_files.open_private(path, flags)
    except OSError as error:
        raise SessionError(f"Cannot open {path}: {error.strerror}") from error


def write_private(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8), whole or not at all. There must be one writer only.

    Raises:
        SessionError: The disk refused; what was there is still there.
    """
    try:
        atomic_write.write_private(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise SessionError(f"Cannot write {path}: {error.strerror}") from error
