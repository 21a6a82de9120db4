"""Archives: a path or a URL → unpacked files in the cache.

    cache/archives/<hash of the bytes>/content/…    its files
                                      /source.json
    cache/archives/urls/<hash of a URL>.json        hash and validators of the last download

An archive is unpacked into a staging folder that is renamed into place, so a folder named after
a hash is always complete.

Archives are untrusted. Only regular files, folders and links that stay inside are extracted. Paths that
escape, other kinds of entries, more than 10,000 entries, more than 200 MiB, and archives larger than they
declare are errors. After an error the caller discards what was extracted.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import re
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol
from urllib.parse import urljoin, urlsplit

import httpx
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from amplifier_app.base.locks import hold_lock
from amplifier_app.base.slow_steps import slow_step
from amplifier_app.plan.source_spec import LOOPBACK, ArchiveSource, without_password
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.staging import links_out, staging, subfolder
from amplifier_app.sources.stopping import stop_event
from amplifier_support.clock import utc_now
from amplifier_support.files import make_private_folder, make_tree_private, write_private
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import Stopped

_XZ_MEMORY = 128 * 1024 * 1024
_CHUNK = 64 * 1024


class Stream(Protocol):
    """Something that can be read sequentially."""

    def read(self, size: int, /) -> bytes: ...


class TooBig(Exception):
    """The stream is longer than the limit."""


class Limited:
    """Reads a stream up to a limit.

    Args:
        stream: The stream.
        limit: Bytes; reading more raises `TooBig`.
    """

    def __init__(self, stream: Stream, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise TooBig
        return data


def _open_decompressed(file: IO[bytes], name: str) -> Stream:
    """The bytes of a tar archive.

    Args:
        file: The archive.
        name: Its file name, whose suffix gives the compression.
    """
    ending = name.lower().rpartition(".")[2]
    if ending in ("gz", "tgz"):
        return gzip.GzipFile(fileobj=file)
    if ending in ("bz2", "tbz2"):
        return bz2.BZ2File(file)
    return _Xz(file) if ending in ("xz", "txz") else file


class _Xz:
    """An xz stream with a memory limit, which `lzma.LZMAFile` does not have."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        while not self._decompressor.eof:
            more = self._file.read(_CHUNK) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not more:
                raise EOFError("it ends early")
            if data := self._decompressor.decompress(more, size):
                return data
        return b""


MAX_BYTES = 200 * 1024 * 1024
MAX_ENTRIES = 10_000

_FILE_CHUNK = 256 * 1024
_MAX_NAME = 1_000
# Size of a central directory with the maximum number of entries and names of usual length.
_MAX_DIRECTORY = MAX_ENTRIES * 400
# Headers and padding of a tar file, in addition to its content.
_TAR_OVERHEAD = MAX_ENTRIES * 4_096


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
    content: Stream | None = None


def unpack(archive: Path, name: str, into: Path) -> None:
    """Unpack an archive into an empty folder.

    Args:
        archive: The file.
        name: Its file name, whose suffix gives the format.
        into: The folder, which exists.

    Raises:
        SourceError: It is damaged, too large, or has a forbidden entry.
        Stopped: The caller was cancelled.
    """
    read = _zip_entries if name.lower().endswith((".zip", ".whl")) else _tar_entries
    try:
        _Unpacker(into).take(read(archive, name))
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

    def __init__(self, root: Path) -> None:
        self._root = root
        self._left = MAX_BYTES
        self._entries = 0
        self._links: dict[PurePosixPath, str] = {}

    def take(self, entries: Iterator[Entry]) -> None:
        for entry in entries:
            _check_stopped("unpacking")
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

    def _copy(self, content: Stream, path: Path) -> None:
        with path.open("xb") as file:
            while chunk := content.read(_FILE_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    raise TooBig
                file.write(chunk)


def _check_stopped(what: str) -> None:
    stop = stop_event()
    if stop is not None and stop.is_set():
        raise Stopped(what)


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
                    yield Entry(listed, "link", content.read(_MAX_NAME).decode("utf-8"))
                elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                    executable = bool(mode & stat.S_IXUSR)
                    yield Entry(listed, "file", executable=executable, content=content)
                else:
                    raise SourceError(f"{listed!r} in the archive is a device or a pipe")


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
        stream: Any = Limited(_open_decompressed(file, name), MAX_BYTES + _TAR_OVERHEAD)
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


def _only_folder(root: Path) -> Path:
    """The single top folder, as in source archives; `root` if there is none."""
    inside = [path for path in root.iterdir() if path.name != "pax_global_header"]
    alone = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
    return inside[0] if alone else root


def _spread_wheel(root: Path) -> None:
    """Move the code in a wheel's `.data` folders to where an installer would put it."""
    for data in root.glob("*.data"):
        for part in ("purelib", "platlib"):
            if (data / part).is_dir():
                shutil.copytree(data / part, root, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(data)
    for link in links_out(root):
        raise SourceError(f"link {link!r} in the wheel points outside it")


_MAX_REDIRECTS = 5
_TOTAL_SECONDS = 600.0
_TIMEOUT = httpx.Timeout(30.0)


class Answer(NamedTuple):
    """A completed download, with HTTP validators to ask whether the archive has changed since.

    Attributes:
        sha256: Hash of the bytes, in hexadecimal.
        etag: The validator of this name; empty if absent.
        modified: The time of the last change; empty if absent.
    """

    sha256: str
    etag: str
    modified: str


def download(source: ArchiveSource, into: Path, known: Answer | None) -> Answer | None:
    """Download an archive into a file.

    Args:
        source: What to download.
        into: The file to write.
        known: The download in the cache; None if there is none.

    Returns:
        None if the cached copy is current.

    Raises:
        SourceError: The archive is unavailable or too large.
        Stopped: The caller was cancelled.
    """
    # Hash and unpack the archive itself, not a compressed transfer form of it.
    headers = {"Accept-Encoding": "identity"}
    if known is not None and known.etag:
        headers["If-None-Match"] = known.etag
    if known is not None and known.modified:
        headers["If-Modified-Since"] = known.modified
    try:
        with (
            slow_step(f"downloading {source.shown}"),
            httpx.Client(timeout=_TIMEOUT, headers=headers) as client,
        ):
            return _follow(client, source, into)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"cannot fetch {source.shown}: {reason}") from error


def _follow(client: httpx.Client, source: ArchiveSource, into: Path) -> Answer | None:
    url = source.location
    for _ in range(_MAX_REDIRECTS + 1):
        with client.stream("GET", url) as response:
            if response.status_code == 304:
                return None
            if response.is_redirect:
                url = _next(url, response.headers.get("Location", ""), source)
                continue
            if response.status_code != 200:
                status = f"{response.status_code} {response.reason_phrase}".strip()
                raise SourceError(f"cannot fetch {source.shown}: the server returned {status}")
            claimed = response.headers.get("Content-Length", "")
            if claimed.isdigit() and int(claimed) > MAX_BYTES:
                raise _too_big(source)
            digest = _write(_in_time(response, source), into, source)
            etag, modified = (response.headers.get(n, "") for n in ("ETag", "Last-Modified"))
            return Answer(digest, etag, modified)
    raise SourceError(f"cannot fetch {source.shown}: more than {_MAX_REDIRECTS} redirects")


def _next(url: str, location: str, source: ArchiveSource) -> str:
    """The target of a redirect, which must be https, or loopback when coming from loopback."""
    target = urljoin(url, location)
    parts = urlsplit(target)
    secure = parts.scheme == "https" and parts.hostname is not None
    if secure or (
        url.startswith("http:") and parts.scheme == "http" and parts.hostname in LOOPBACK
    ):
        return target
    raise SourceError(
        f"{source.shown} redirects to {without_password(target)}; only https:// is followed"
    )


def _in_time(response: httpx.Response, source: ArchiveSource) -> Iterator[bytes]:
    limit = time.monotonic() + _TOTAL_SECONDS
    for chunk in response.iter_bytes():
        if time.monotonic() > limit:
            took = f"it took longer than {_TOTAL_SECONDS:g} s"
            raise SourceError(f"cannot fetch {source.shown}: {took}")
        yield chunk


def _write(chunks: Iterable[bytes], into: Path, source: ArchiveSource) -> str:
    """Write an archive and return its hash, so that what is unpacked is what was hashed."""
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as file:
        for chunk in chunks:
            _check_stopped(source.file_name)
            size += len(chunk)
            if size > MAX_BYTES:
                raise _too_big(source)
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _too_big(source: ArchiveSource) -> SourceError:
    return SourceError(f"{source.shown} is larger than {MAX_BYTES // 1024**2} MiB")


_HASH_CHUNK = 1024 * 1024


class Unpacked(NamedTuple):
    """The files of an archive.

    Attributes:
        folder: The folder of the module.
        sha256: `"sha256:…"` of the archive's bytes.
    """

    folder: Path
    sha256: str


class ArchiveCache:
    """A user's downloaded and unpacked archives, shared by all processes.

    Args:
        root: The cache folder; created when first needed.
        offline: Use only the cache and local files.
    """

    def __init__(self, root: Path, *, offline: bool = False) -> None:
        self._root = root
        self._offline = offline

    def fetch(self, source: ArchiveSource, *, locked: str | None = None) -> Unpacked:
        """Fetch and unpack an archive.

        Args:
            source: What to fetch.
            locked: The locked hash, `"sha256:…"`.

        Raises:
            SourceError: The archive is unavailable, not allowed, or has another hash.
            Stopped: The caller was cancelled.
        """
        if source.is_wheel:
            _check_wheel(source.file_name)
        expected = source.sha256 or (locked or "").removeprefix("sha256:")
        if expected and (home := self._home(source, expected)).is_dir():
            # Same hash, same bytes: the URL does not matter.
            return self._unpack(source, home, expected)
        if source.is_local:
            sha = self._from_file(source, expected)
        else:
            sha = self._from_url(source, expected)
        return self._unpack(source, self._home(source, sha), sha)

    def _unpack(self, source: ArchiveSource, home: Path, sha256: str) -> Unpacked:
        content = home / "content"
        root = content if source.is_wheel else _only_folder(content)
        folder = subfolder(root, source)
        return Unpacked(folder if source.subdirectory else root, f"sha256:{sha256}")

    # -- where the bytes come from -----------------------------------------------------

    def _from_file(self, source: ArchiveSource, expected: str) -> str:
        file = Path(source.location)
        if not file.is_file():
            raise SourceError(f"{file} does not exist", hint="Check the module's 'source'")
        with staging(self._root) as stage:
            copy = stage / "archive"
            try:
                with file.open("rb") as opened:
                    chunks = iter(lambda: opened.read(_HASH_CHUNK), b"")
                    actual = _write(chunks, copy, source)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise SourceError(f"cannot read {file}: {reason}") from error
            self._keep(source, copy, _checked_hash(source, expected, actual))
        return actual

    def _from_url(self, source: ArchiveSource, expected: str) -> str:
        name = hashlib.sha256(source.location.encode()).hexdigest()[:32]
        note = self._root / "urls" / f"{name}.json"
        known = _read_note(note)
        if known is not None and not self._home(source, known.sha256).is_dir():
            known = None
        if self._offline:
            if known is None:
                raise SourceError(
                    f"{source.shown} is not in the cache and cannot be downloaded offline",
                    hint="Run once without --offline",
                )
            return _checked_hash(source, expected, known.sha256)
        with staging(self._root) as stage:
            copy = stage / "archive"
            answer = download(source, copy, known)
            if answer is None:
                assert known is not None
                return _checked_hash(source, expected, known.sha256)
            self._keep(source, copy, _checked_hash(source, expected, answer.sha256))
            facts = {"url": without_password(source.location), **answer._asdict()}
            make_private_folder(note.parent)
            write_private(note, json.dumps(facts).encode())
        return answer.sha256

    # -- the cache ---------------------------------------------------------------------

    def _home(self, source: ArchiveSource, sha256: str) -> Path:
        # Unpacking a wheel moves some of its files.
        return self._root / (f"{sha256}-wheel" if source.is_wheel else sha256)

    def _keep(self, source: ArchiveSource, archive: Path, sha256: str) -> None:
        home = self._home(source, sha256)
        if home.is_dir():
            return
        with hold_lock(home.with_suffix(".lock"), stop_event()), staging(self._root) as stage:
            if home.is_dir():
                return
            content = stage / "home" / "content"
            content.mkdir(parents=True)
            unpack(archive, source.file_name, content)
            if source.is_wheel:
                _spread_wheel(content)
            record = {
                "source": source.shown,
                "sha256": sha256,
                "fetched": utc_now().isoformat(timespec="seconds"),
            }
            (stage / "home" / "source.json").write_text(json.dumps(record), encoding="utf-8")
            make_tree_private(stage / "home")
            (stage / "home").rename(home)


def _checked_hash(source: ArchiveSource, expected: str, actual: str) -> str:
    """The hash of an archive. Raises SourceError if another one is expected; empty expects none."""
    if expected not in ("", actual):
        raise SourceError(
            f"{source.shown} does not match its hash: SHA-256 is {actual}, expected {expected}",
            hint="The archive was changed, or the expected hash is of another archive",
        )
    return actual


def _read_note(note: Path) -> Answer | None:
    # A missing or damaged note only costs another download.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        facts = json.loads(note.read_text(encoding="utf-8"))
        return Answer(*(facts[name] for name in Answer._fields))
    return None


def _check_wheel(file_name: str) -> None:
    try:
        tags = parse_wheel_filename(file_name)[3]
    except InvalidWheelFilename as error:
        raise SourceError(f"{file_name!r} is not a valid wheel file name") from error
    if tags.isdisjoint(sys_tags()):
        made_for = ", ".join(sorted(map(str, tags)))
        raise SourceError(f"{file_name} is built for {made_for}, not for this Python and machine")
