"""Write private files such as conversations: owner-only, never through links, atomically.

The functions of `amplifier_support`, raising session errors.
"""

import errno
from pathlib import Path
from typing import Final

from amplifier_app.base.errors import SessionError
from amplifier_support import files

OWN_FOLDER: Final = "Fix its permissions, or set AMPLIFIER_HOME to a folder of your own."


def make_private_folder(path: Path) -> None:
    """Create `path` and its missing parents with mode 0700, each synced to disk.

    Raises:
        SessionError: The path is not a folder, or cannot be created.
    """
    try:
        files.make_private_folder(path)
    except OSError as error:
        hint = None if error.errno in (errno.ENOSPC, errno.EDQUOT) else OWN_FOLDER
        raise SessionError(f"cannot create {path}: {error.strerror}", hint=hint) from error
    if path.is_symlink() or not path.is_dir():
        raise SessionError(
            f"cannot use {path}: it is a link or not a folder",
            hint="Remove it, or set AMPLIFIER_HOME to a folder of your own.",
        )


def open_private(path: Path, flags: int) -> int:
    """Open the file `path`, created with mode 0600 regardless of the umask, never through a link.

    Raises:
        SessionError: It is a link or not a regular file, or cannot be opened.
    """
    try:
        return files.open_private(path, flags)
    except OSError as error:
        raise SessionError(f"cannot open {path}: {error.strerror}") from error


def write_private(path: Path, text: str) -> None:
    """Replace the content of `path` with `text` (UTF-8) atomically. There must be only one writer.

    Raises:
        SessionError: It cannot be written; the old content is unchanged.
    """
    try:
        files.write_private(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise SessionError(f"cannot write {path}: {error.strerror}") from error
