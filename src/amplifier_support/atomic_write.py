"""Replacing a file by new content, whole or not at all.

Where the system can (Linux), the new content has no name until it is complete and on disk, so that a
writer that is killed leaves nothing behind. Otherwise, and for the moment in which it replaces an old
file, it is called `.amplifier-….tmp` and locked; the next writer in that folder removes those that are
not locked. A writer may choose another folder for this name; that folder is cleaned at every start.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

from amplifier_support.private_files import FILE_MODE, open_regular, try_lock

_TEMPORARY = ".amplifier-{}.tmp"
_TEMPORARY_NAME = re.compile(r"\.amplifier-[0-9a-f]{16}\.tmp")
_UNNAMED: int | None = getattr(os, "O_TMPFILE", None)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)

_cleaned: set[tuple[int, int]] = set()
"""Folders, as device and inode, in which this process has removed what others left."""


def write_private(path: Path, data: bytes) -> None:
    """Replace a file by one for its owner only (0600), on disk when this returns.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    _write(path, _New(data, FILE_MODE, FILE_MODE, durable=True, keeps_owner=False), None)


def write_atomically(
    path: str | Path,
    data: bytes,
    *,
    mode: int = FILE_MODE,
    permissions: int | None = None,
    durable: bool = True,
    folder: int | None = None,
    staging: str | None = None,
) -> None:
    """Replace a file; of several writers the last one wins.

    Args:
        path: The file, not a link; an existing one keeps its owner and mode.
        data: The whole content.
        mode: Of a new file, less the umask.
        permissions: Of the file, whatever it had before and whatever the umask.
        durable: Whether it is on disk when this returns.
        folder: Descriptor of the file's folder; `path` is then a name in it.
        staging: Folder for the temporary name, used if it is on the same file system.

    Raises:
        OSError: The system refused; what was there is still there.
    """
    _write(path, _New(data, mode, permissions, durable, True, staging), folder)


def create_atomically(
    path: str | Path, data: bytes | Callable[[], Iterable[bytes]], *, mode: int = FILE_MODE
) -> None:
    """Write a new file, on disk when this returns.

    Args:
        path: The file.
        data: The whole content, or returns its pieces; it may be called twice.
        mode: Less the umask.

    Raises:
        FileExistsError: There is a file or a link of this name.
        OSError: The system refused; there is no such file.
    """
    new = _New(data, mode, None, durable=True, keeps_owner=False, replaces=False)
    _write(path, new, None)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed writers left in `folder`. Raises nothing."""
    with contextlib.suppress(OSError), _open_folder(str(folder), None) as opened:
        _remove_abandoned(opened, once=False)


class _Place(NamedTuple):
    """A file's folder and name, and where the system takes them its folder's descriptor."""

    parent: str
    name: str
    folder: int | None

    def path(self, name: str) -> str:
        """`name` in the folder, for a call that takes its descriptor, too."""
        return name if self.folder is not None else os.path.join(self.parent, name)


class _New(NamedTuple):
    data: bytes | Callable[[], Iterable[bytes]]
    mode: int
    permissions: int | None
    durable: bool
    keeps_owner: bool
    staging: str | None = None
    replaces: bool = True


def _write(path: str | Path, new: _New, folder: int | None) -> None:
    parent, name = os.path.split(path)
    with _open_folder(parent or ".", folder) as opened:
        _remove_abandoned(opened, once=True)
        place = _Place(parent, name, opened)
        if not _write_unnamed(place, new):
            _write_named(place, new)
        if new.durable and opened is not None:
            os.fsync(opened)


@contextlib.contextmanager
def _open_folder(parent: str, folder: int | None) -> Generator[int | None]:
    """A descriptor of the folder that can be read and synced; None where there are none."""
    if not _BY_DESCRIPTOR:
        yield None
        return
    # The given one may be good for finding names only (O_PATH).
    descriptor = os.open("." if folder is not None else parent, _FOLDER, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_unnamed(place: _Place, new: _New) -> bool:
    """Whether the file could be written without a name until it is complete."""
    descriptor = _open_unnamed(place, new)
    if descriptor is None:
        return False
    try:
        is_new = _fill(descriptor, place, new)
        return _give_name(descriptor, place, new, is_new=is_new)
    finally:
        os.close(descriptor)


def _open_unnamed(place: _Place, new: _New) -> int | None:
    if _UNNAMED is None or place.folder is None:
        return None
    try:
        return os.open(".", os.O_WRONLY | _UNNAMED, new.mode, dir_fd=place.folder)
    except OSError:
        return None


def _give_name(descriptor: int, place: _Place, new: _New, *, is_new: bool) -> bool:
    source = f"/proc/self/fd/{descriptor}"
    try:
        if is_new or not new.replaces:
            try:
                # A link never replaces a file.
                os.link(source, place.name, dst_dir_fd=place.folder)
                return True
            except FileExistsError:
                if not new.replaces:
                    raise
        if new.staging is not None and _rename_from(new.staging, source, place):
            return True
        temporary = _temporary_name()
        os.link(source, temporary, dst_dir_fd=place.folder)
    except FileNotFoundError:
        return False  # No /proc to reach the file by.
    _rename(temporary, place)
    return True


def _rename_from(staging: str, source: str, place: _Place) -> bool:
    """Whether the file could get its name by way of another folder."""
    temporary = _temporary_name()
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(staging, _FOLDER)
            opened.callback(os.close, folder)
            # Only with a descriptor does `link` follow the link in /proc.
            os.link(source, temporary, dst_dir_fd=folder)
        except OSError:
            return False  # It is on another file system, or gone.
        try:
            os.replace(temporary, place.name, src_dir_fd=folder, dst_dir_fd=place.folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
            raise
    return True


def _write_named(place: _Place, new: _New) -> None:
    give_name = _rename if new.replaces else _link
    give_name(_write_temporary(place, new), place)


def _write_temporary(place: _Place, new: _New) -> str:
    """The name of a temporary file that has the content."""
    temporary = _temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    descriptor = open_regular(place.path(temporary), flags, new.mode, dir_fd=place.folder)
    try:
        try:
            _fill(descriptor, place, new)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(place.path(temporary), dir_fd=place.folder)
        raise
    return temporary


def _fill(descriptor: int, place: _Place, new: _New) -> bool:
    """Write the content; returns whether there is no old file."""
    # On a file system without locks nothing is taken for abandoned.
    with contextlib.suppress(OSError):
        try_lock(descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.writelines([new.data] if isinstance(new.data, bytes) else new.data())
    try:
        path = place.path(place.name)
        old: os.stat_result | None = os.stat(path, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    if hasattr(os, "fchmod"):
        _set_owner_and_mode(descriptor, old, new)
    if new.durable:
        os.fsync(descriptor)
    return old is None


def _set_owner_and_mode(descriptor: int, old: os.stat_result | None, new: _New) -> None:
    permissions = new.permissions
    if old is not None and stat.S_ISREG(old.st_mode):
        status = os.fstat(descriptor)
        owner = (old.st_uid, old.st_gid)
        if new.keeps_owner and owner != (status.st_uid, status.st_gid):
            # Only root may give files away; anyone else replaces the file by one of their own.
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, *owner)
        if permissions is None:
            permissions = stat.S_IMODE(old.st_mode)
    if permissions is not None:
        os.fchmod(descriptor, permissions)


def _rename(temporary: str, place: _Place) -> None:
    folder = place.folder
    source, target = place.path(temporary), place.path(place.name)
    try:
        os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        # A signal may have come after it was renamed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source, dir_fd=folder)
        raise


def _link(temporary: str, place: _Place) -> None:
    source, target = place.path(temporary), place.path(place.name)
    try:
        os.link(source, target, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        if os.path.lexists(os.path.join(place.parent, place.name)):
            raise FileExistsError(target) from None
        os.rename(source, target, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        return
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source, dir_fd=place.folder)


def _temporary_name() -> str:
    return _TEMPORARY.format(os.urandom(8).hex())


def _remove_abandoned(folder: int | None, *, once: bool) -> None:
    """Remove temporary files whose writer is gone.

    Args:
        folder: Descriptor of the folder; None where there are none.
        once: Do nothing if this process has done it before.
    """
    if folder is None:
        return  # A system where files that are open cannot be removed.
    status = os.fstat(folder)
    key = (status.st_dev, status.st_ino)
    if once and key in _cleaned:
        return
    _cleaned.add(key)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [entry.name for entry in entries if _TEMPORARY_NAME.fullmatch(entry.name)]
        for name in found:
            with contextlib.suppress(OSError):
                descriptor = open_regular(name, os.O_RDONLY, dir_fd=folder)
                try:
                    if try_lock(descriptor):
                        os.unlink(name, dir_fd=folder)
                finally:
                    os.close(descriptor)
