"""Writing files that people keep beside their plans: settings and locks."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.private_files import sync_directory


def write_whole(file: Path, text: str) -> None:
    """Replace a file by `text` (UTF-8), whole or not at all, and have it on disk.

    Owner and mode stay. The folder is made if it is not there.

    Args:
        file: The file; a link is followed. A new one below the user's own folder is 0600.
        text: What it holds from then on.

    Raises:
        ConfigError: It cannot be written; what was there is still there.
    """
    target = Path(os.path.realpath(file))
    unfinished = target.with_name(f".{target.name}.{os.urandom(4).hex()}.new")
    private = target.is_relative_to(os.path.realpath(paths.config_dir()))
    try:
        target.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(unfinished, flags, 0o600 if private else 0o666)
        with open(descriptor, "wb") as stream:
            stream.write(text.encode())
            _keep_owner_and_mode(stream.fileno(), target)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, target)
        sync_directory(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write: {reason}", location=Location(str(file))) from error


def _keep_owner_and_mode(descriptor: int, target: Path) -> None:
    try:
        before = target.stat()
    except FileNotFoundError:
        return
    if not hasattr(os, "fchmod"):
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
