"""Write files the user keeps: settings, plans and their locks, and new files that a command writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location, SessionError, UsageError
from amplifier_support.files import (
    FILE_MODE,
    create_atomically,
    make_private_folder,
    write_atomically,
)


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
            make_private_folder(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text.encode(), mode=0o600 if private else 0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(file))) from error


def write_new(file: Path, text: str | Callable[[], Iterable[str]], mode: int = FILE_MODE) -> None:
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
        create_atomically(file, data, mode=mode)
    except FileExistsError:
        raise UsageError(f"{file} already exists", hint="Choose another name.") from None
    except OSError as error:
        raise SessionError(f"cannot write {file}: {error.strerror}") from error
