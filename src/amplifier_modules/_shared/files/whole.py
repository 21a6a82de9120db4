"""Reads and writes whole files at a guarded location."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Generator
from typing import NamedTuple

from amplifier_modules._shared.files.roots import Location, is_regular


class FileProblem(Exception):
    """The operation does not make sense on what is there; the message says why."""


class NotAFile(FileProblem):
    """What is there is a folder, a device, a pipe."""


class FileTooLarge(FileProblem):
    """The file is larger than the operation takes at once."""


_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_UNNAMED: int | None = getattr(os, "O_TMPFILE", None)


@contextlib.contextmanager
def opened(location: Location) -> Generator[tuple[int, int]]:
    """Open the file at `location`: descriptor and size in bytes.

    Raises:
        NotAFile: Something else is there; it is not touched.
        OSError: It cannot be opened.
    """
    # Looked at first, because opening a device may already do something.
    _require_file(location.stat())
    # Not blocking, so that a pipe put there meanwhile cannot hold the session up.
    descriptor = location.open(_READ | _BINARY)
    try:
        status = os.fstat(descriptor)
        _require_file(status)
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def read_whole(location: Location, limit: int) -> bytes:
    """The bytes of a file of at most `limit` bytes. Raises NotAFile, FileTooLarge, OSError."""
    with opened(location) as (descriptor, size):
        if size > limit:
            raise FileTooLarge(f"it has {size} bytes, more than {limit}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()


def exists(location: Location) -> bool:
    """Whether a file is there. Raises NotAFile when it is something else."""
    try:
        _require_file(location.stat())
    except FileNotFoundError:
        return False
    return True


def write_whole(location: Location, data: bytes, mode: int | None = None) -> None:
    """Replace or create the file at `location` atomically.

    Mode and, where allowed, owner of an old file are kept. The bytes reach the disk when the
    system writes them, as with any program's files.

    Args:
        location: A place in a folder that is there.
        data: All of the new content.
        mode: Permissions to give it in place of those of the old file, or the usual ones.

    Raises:
        NotAFile: The path is not a regular file.
        OSError: It cannot be written; the old file is untouched.
    """
    try:
        old: os.stat_result | None = location.stat()
    except FileNotFoundError:
        old = None
    if old is not None:
        _require_file(old)
    new = _New(data, old, mode)
    if not _write_unnamed(location, new):
        _write_named(location, new)


class _New(NamedTuple):
    """What is to be written, over what, and with which permissions if they are given."""

    data: bytes
    old: os.stat_result | None
    mode: int | None

    @property
    def permissions(self) -> int | None:
        """Those to set; None for what the umask leaves."""
        if self.mode is not None or self.old is None:
            return self.mode
        return stat.S_IMODE(self.old.st_mode)


def _write_unnamed(location: Location, new: _New) -> bool:
    """Write a file that has no name until it is complete, so that a kill leaves nothing behind.

    False when the system or the file system has no such files.
    """
    if _UNNAMED is None or location.dir_fd is None:
        return False
    try:
        descriptor = os.open(".", os.O_WRONLY | _UNNAMED, 0o666, dir_fd=location.dir_fd)
    except OSError:
        return False
    try:
        _fill(descriptor, new)
        return _name(descriptor, location, replace=new.old is not None)
    finally:
        os.close(descriptor)


def _name(descriptor: int, location: Location, *, replace: bool) -> bool:
    source = f"/proc/self/fd/{descriptor}"
    temporary = _temporary_name()
    try:
        if not replace:
            with contextlib.suppress(FileExistsError):
                os.link(source, location.name, dst_dir_fd=location.dir_fd)
                return True
        os.link(source, temporary, dst_dir_fd=location.dir_fd)
    except FileNotFoundError:
        return False  # No /proc to reach the file by.
    _rename(temporary, location)
    return True


def _write_named(location: Location, new: _New) -> None:
    temporary = _temporary_name()
    if location.dir_fd is None:
        temporary = os.path.join(os.path.dirname(location.path), temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
    descriptor = os.open(temporary, flags, 0o666, dir_fd=location.dir_fd)
    try:
        try:
            _fill(descriptor, new)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(temporary, dir_fd=location.dir_fd)
        raise
    _rename(temporary, location)


def _fill(descriptor: int, new: _New) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(new.data)
    if os.name == "nt":
        return
    if (old := new.old) is not None:
        made = os.fstat(descriptor)
        if (old.st_uid, old.st_gid) != (made.st_uid, made.st_gid):
            # Only root may give files away; anybody else replaces the file by one of his own.
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, old.st_uid, old.st_gid)
    if (permissions := new.permissions) is not None:
        os.fchmod(descriptor, permissions)


def _rename(temporary: str, location: Location) -> None:
    folder = location.dir_fd
    try:
        os.replace(temporary, location.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise


def _temporary_name() -> str:
    return f".amplifier-{secrets.token_hex(8)}.tmp"


def _require_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotAFile("it is a folder")
    if not is_regular(status):
        raise NotAFile("it is a device, pipe or socket, not a file")
