"""Replacing a file by new content, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from amplifier_support.private_files import FILE_MODE, open_private, open_regular, sync_folder

_UNFINISHED = ".{}.new"


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one for its owner only (0600), on disk when this returns.

    There must be one writer at a time. It overwrites what a killed one left behind.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    unfinished = path.with_name(_UNFINISHED.format(path.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    _replace(path, data, unfinished, open_private(unfinished, flags), durable=True)


def write_atomically(
    path: Path, data: bytes, *, mode: int = FILE_MODE, durable: bool = True
) -> None:
    """Replace a file that several may write at once; the last one wins.

    Args:
        path: The file; an existing one keeps its owner and mode.
        data: The whole content.
        mode: Of a new file, less the umask.
        durable: Whether it is on disk when this returns.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    unfinished = path.with_name(_UNFINISHED.format(f"{path.name}.{os.urandom(4).hex()}"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = open_regular(unfinished, flags, mode)
    _replace(path, data, unfinished, descriptor, durable=durable, keep=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed writer left in `folder`."""
    for leftover in folder.glob(_UNFINISHED.format("*")):
        with contextlib.suppress(OSError):
            leftover.unlink()


def _replace(
    path: Path, data: bytes, unfinished: Path, descriptor: int, *, durable: bool, keep: bool = False
) -> None:
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if keep:
                _keep_owner_and_mode(descriptor, path)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(unfinished, path)
        if durable:
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _keep_owner_and_mode(descriptor: int, path: Path) -> None:
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    if not hasattr(os, "fchmod"):
        return
    # Only root may give files away; anyone else replaces the file by one of their own.
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
