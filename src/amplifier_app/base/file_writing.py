"""Write files atomically: private ones such as conversations, those the user keeps such as settings and plans, and new
ones that a command writes. Read files of records.

Private files are owner-only and never opened through links.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location, SessionError, UsageError
from amplifier_support import files, journal
from amplifier_support.files import system_errors_as

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
    with system_errors_as(SessionError, f"cannot open {path}"):
        return files.open_private(path, flags)


def read_records(path: Path) -> list[journal.Record]:
    """The records in a file of JSON lines, without invalid lines; none if it does not exist.

    Raises:
        SessionError: It cannot be read.
    """
    with (
        system_errors_as(SessionError, f"cannot read {path}"),
        contextlib.suppress(FileNotFoundError),
    ):
        return journal.readable_records(path.read_bytes())
    return []


def write_private(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace the content of `path` with `text` (UTF-8) atomically. There must be only one writer.

    With `durable`, it is on disk when this returns; otherwise a power failure may restore the old content.

    Raises:
        SessionError: It cannot be written; the old content is unchanged.
    """
    with system_errors_as(SessionError, f"cannot write {path}"):
        files.write_private(path, text.encode("utf-8", "backslashreplace"), durable=durable)


def write_whole(file: Path, text: str) -> None:
    """Replace the content of a file with `text` (UTF-8) atomically, and sync it to disk.

    Owner and mode are kept. A missing folder is created.

    Args:
        file: The file; links are followed. A new file in the user's config folder gets mode 0600. A pipe
            or a device, such as /dev/fd/63, is written to.
        text: The new content.

    Raises:
        ConfigError: It cannot be written; the old content is unchanged.
    """
    target = Path(os.path.realpath(file))
    private = target.is_relative_to(os.path.realpath(paths.config_dir()))
    try:
        if file.exists() and not file.is_file():
            with open(file, "wb") as stream:
                stream.write(text.encode())
            return
        if private:
            files.make_private_folder(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(target, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(file))) from error


def write_new(
    file: Path, text: str | Callable[[], Iterable[str]], mode: int = files.FILE_MODE
) -> None:
    """Write a new file that the user named.

    Args:
        file: The file.
        text: The content, written as UTF-8 with `?` for lone surrogates, or returns its pieces; it may be
            called twice.
        mode: Less the umask.

    Raises:
        UsageError: There is a file or a link of this name.
        SessionError: It cannot be written; there is no such file.
    """

    def data() -> Iterator[bytes]:
        for piece in [text] if isinstance(text, str) else text():
            yield piece.encode("utf-8", "replace")

    try:
        files.create_atomically(file, data, mode=mode)
    except FileExistsError:
        raise UsageError(f"{file} already exists", hint="Choose another name.") from None
    except OSError as error:
        raise SessionError(f"cannot write {file}: {error.strerror}") from error
