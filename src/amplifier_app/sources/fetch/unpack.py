"""Unpacks untrusted archives.

Only regular files, folders and links that stay inside are extracted. Paths that escape, other
kinds of entries, more than 10,000 entries, more than 200 MiB, and archives larger than they
declare are errors. After an error the caller discards what was extracted.
"""

from __future__ import annotations

import lzma
import re
import shutil
import stat
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Protocol

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.decompress import Limited, TooBig, open_decompressed
from amplifier_app.sources.fetch.links import links_out
from amplifier_support.programs import Stopped

MAX_BYTES = 200 * 1024 * 1024
MAX_ENTRIES = 10_000

_CHUNK = 256 * 1024
_MAX_NAME = 1_000
# Size of a central directory with the maximum number of entries and names of usual length.
_MAX_DIRECTORY = MAX_ENTRIES * 400
# Headers and padding of a tar file, in addition to its content.
_TAR_OVERHEAD = MAX_ENTRIES * 4_096


class Reader(Protocol):
    """The bytes of an entry."""

    def read(self, size: int, /) -> bytes: ...


class Entry(NamedTuple):
    """One entry of an archive.

    Attributes:
        name: Its name in the archive.
        kind: `"file"`, `"folder"`, `"link"` (symbolic) or `"same"` (hard link).
        target: The target of a link, as written.
        executable: Whether it is executable.
        content: The bytes of a file.
    """

    name: str
    kind: str
    target: str = ""
    executable: bool = False
    content: Reader | None = None


def unpack(archive: Path, name: str, into: Path, *, stop: threading.Event | None = None) -> None:
    """Unpack an archive into an empty folder.

    Args:
        archive: The file.
        name: Its file name, whose suffix gives the format.
        into: The folder, which exists.
        stop: Set it to cancel.

    Raises:
        SourceError: It is damaged, too large, or has a forbidden entry.
        Stopped: `stop` was set.
    """
    read = _zip_entries if name.lower().endswith((".zip", ".whl")) else _tar_entries
    try:
        _Unpacker(into, stop).take(read(archive, name))
    except TooBig as error:
        limit = f"{MAX_BYTES // 1024**2} MiB"
        raise SourceError(f"the content of {name} is larger than {limit}") from error
    except _DAMAGED as error:
        local = isinstance(error, OSError) and error.errno
        what = f"cannot unpack {name}" if local else f"{name} is damaged"
        raise SourceError(f"{what}: {error or type(error).__name__}") from error


# What the libraries raise for invalid archives; zipfile lets the last ones through.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)


class _Unpacker:
    """Writes entries below a folder, links last, so that nothing is written through a link."""

    def __init__(self, root: Path, stop: threading.Event | None) -> None:
        self._root = root
        self._stop = stop
        self._left = MAX_BYTES
        self._entries = 0
        self._links: dict[PurePosixPath, str] = {}

    def take(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            if self._stop is not None and self._stop.is_set():
                raise Stopped("unpacking")
            self._count()
            pure = _check_name(entry.name)
            if pure.parts:
                self._write(pure, entry)
        for link, target in self._links.items():
            self._path_for(link).symlink_to(target)
        for link in links_out(self._root):
            raise SourceError(f"link {link!r} in the archive points outside it")

    def _count(self) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise SourceError(f"the archive has more than {MAX_ENTRIES} entries")

    def _write(self, pure: PurePosixPath, entry: Entry) -> None:
        if any(parent in self._links for parent in pure.parents):
            raise SourceError(f"{entry.name!r} in the archive is below a link")
        if entry.kind == "folder":
            self._path_for(pure).mkdir(exist_ok=True)
            return
        path = self._path_for(pure)
        if path.exists() or pure in self._links:
            raise SourceError(f"duplicate entry {entry.name!r} in the archive")
        if entry.kind == "link":
            self._links[pure] = _check_target(entry)
        elif entry.kind == "same":
            with self._other(entry).open("rb") as other:
                self._copy(other, path)
        elif entry.content is not None:
            self._copy(entry.content, path)
        if entry.executable and entry.kind != "link":
            path.chmod(0o755)

    def _path_for(self, pure: PurePosixPath) -> Path:
        for parent in reversed(pure.parents):
            if not (self._root / parent).is_dir():
                # Folders without an entry of their own count as well.
                self._count()
                (self._root / parent).mkdir()
        return self._root / pure

    def _other(self, entry: Entry) -> Path:
        pure = _check_name(entry.target)
        if any(part in self._links for part in (pure, *pure.parents)):
            raise SourceError(f"{entry.name!r} in the archive is below a link")
        other = self._root / pure
        if not other.is_file():
            raise SourceError(f"{entry.name!r} is a link to {entry.target!r}, which is missing")
        return other

    def _copy(self, content: Reader, path: Path) -> None:
        with path.open("xb") as file:
            while chunk := content.read(_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    raise TooBig
                file.write(chunk)


def _check_name(name: str) -> PurePosixPath:
    pure = PurePosixPath(name)
    if (
        pure.is_absolute()
        or ".." in pure.parts
        or "\\" in name
        or re.match("[A-Za-z]:", name)
        or not name.isprintable()
        or len(name) > _MAX_NAME
    ):
        raise SourceError(f"{name[:_MAX_NAME]!r} is not a valid path inside the archive")
    return pure


def _check_target(entry: Entry) -> str:
    if not entry.target or entry.target.startswith("/") or not entry.target.isprintable():
        raise SourceError(f"link {entry.name!r} in the archive points outside it")
    return entry.target


# -- zip ---------------------------------------------------------------------------------


def _zip_entries(archive: Path, name: str) -> Iterator[Entry]:
    _check_directory(archive)
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.filename:
                raise SourceError("an entry of the archive has no name")
            if info.flag_bits & 1:
                raise SourceError(f"{info.filename!r} in the archive is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise SourceError(f"{info.filename!r} uses an unsupported compression method")
            # `filename` ends at the first NUL, so it can differ from the real name.
            listed = info.orig_filename
            mode = info.external_attr >> 16
            if info.is_dir():
                yield Entry(listed, "folder")
                continue
            with opened.open(info) as content:
                if stat.S_ISLNK(mode):
                    yield Entry(listed, "link", _link_text(content))
                elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                    executable = bool(mode & stat.S_IXUSR)
                    yield Entry(listed, "file", executable=executable, content=content)
                else:
                    raise SourceError(f"{listed!r} in the archive is a device or a pipe")


def _link_text(content: IO[bytes]) -> str:
    return content.read(_MAX_NAME).decode("utf-8")


def _check_directory(archive: Path) -> None:
    """Refuse an oversized list of entries, as `zipfile` reads all of it into memory."""
    with archive.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 66_000))
        tail = file.read()
    start = tail.rfind(b"PK\5\6")
    if start < 0 or len(tail) < start + 16:
        raise zipfile.BadZipFile("no list of entries")
    # The 64-bit form has a length field of its own; no archive within the limits needs it.
    long = start >= 20 and tail[start - 20 : start - 16] == b"PK\6\7"
    if long or int.from_bytes(tail[start + 12 : start + 16], "little") > _MAX_DIRECTORY:
        raise SourceError(f"the archive has more than {MAX_ENTRIES} entries")


# -- tar ---------------------------------------------------------------------------------


def _tar_entries(archive: Path, name: str) -> Iterator[Entry]:
    with archive.open("rb") as file:
        # This mode only needs a stream, despite the annotation.
        stream: Any = Limited(open_decompressed(file, name), MAX_BYTES + _TAR_OVERHEAD)
        # As a stream, without seeking, so that nothing is read twice.
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as opened:
            for info in opened:
                if info.isdir():
                    yield Entry(info.name, "folder")
                elif info.issym():
                    yield Entry(info.name, "link", info.linkname)
                elif info.islnk():
                    yield Entry(info.name, "same", info.linkname)
                elif info.isfile() and not info.issparse():
                    content = opened.extractfile(info)
                    executable = bool(info.mode & stat.S_IXUSR)
                    yield Entry(info.name, "file", executable=executable, content=content)
                else:
                    raise SourceError(f"{info.name!r} in the archive is a device or a pipe")
        # The checksum is behind the end of the archive.
        while stream.read(1 << 20):
            pass


def only_folder(root: Path) -> Path:
    """The single top folder, as in source archives; `root` if there is none."""
    inside = [path for path in root.iterdir() if path.name != "pax_global_header"]
    alone = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
    return inside[0] if alone else root


def spread_wheel(root: Path) -> None:
    """Move the code in a wheel's `.data` folders to where an installer would put it."""
    for data in root.glob("*.data"):
        for part in ("purelib", "platlib"):
            if (data / part).is_dir():
                shutil.copytree(data / part, root, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(data)
    for link in links_out(root):
        raise SourceError(f"link {link!r} in the wheel points outside it")
