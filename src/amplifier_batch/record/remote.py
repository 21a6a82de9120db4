"""The record of a batch at a URL: it outlives this machine, and a driver on another one can take over.

The folder of the batch stays the working copy, in its usual format. What changes in it is written to the URL as well,
together for all rows that wait:

    parts/000/004/017      part 4,017: a line of JSON with a digest, then changes (see `replica`), compressed
    segments/000/003       the parts 3,000 to 3,999, one after the other
    drivers/000004017-ID   the process that drives the batch from that part on, and when it was last alive

A row goes on, for example with a tool call, once its part is sealed: what is not sealed has not happened. Changes too
large for one part are split, and count once the last of these parts is sealed. A part is
created exclusively, so only one driver can write the next one. A driver begins with a part of its own, whose number is
the one that its predecessor would write next: that one finds the part there, and stops. Clocks do not matter for this,
only for the question whether to wait for the other driver. So the first part of each driver is never deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.base.file_writing import write_private
from amplifier_app.base.locks import hold_lock
from amplifier_app.base.stdio import to_stderr
from amplifier_app.sessions.lock import is_locked
from amplifier_batch.record.folder import (
    COPY,
    DRIVER,
    WORK,
    BatchFolder,
    Sealer,
    holding,
    is_alive,
    parse_driver,
    read_copy,
    read_driver,
)
from amplifier_batch.record.replica import (
    SESSIONS,
    Change,
    Replica,
    TopFiles,
    apply_changes,
    find_folders,
    split_changes,
)
from amplifier_support.fields import to_mapping
from amplifier_support.files import create_atomically, make_private_folder
from amplifier_support.installation import install_command

_EXCLUSIVE = {"file": "fsspec", "memory": "fsspec", "s3": "s3", "gs": "gcs"}
"""File systems that create whole files exclusively, and the extras that they need."""

_FETCHED_AT_ONCE = 20
_MAX_BYTES = 50_000_000
"""Of a part and its header, packed or not; those that `split_changes` allows are smaller."""

_PER_FOLDER = 1000
_ALIVE_SECONDS = 10.0
_COMMIT_SECONDS = 1.0
"""Seconds that a change may stay unsealed if no row waits for it."""

_SLOW_SECONDS = 10.0
_MAX_DELAY = 15.0
_PATIENCE_SECONDS = 10.0
"""Seconds that a batch that is stopped tries to write to its URL."""

_MAX_RACES = 100
_PIECE = 1 << 20


def is_url(text: str) -> bool:
    """Return True for a URL instead of a folder."""
    return "://" in text


class Unavailable(SessionError):
    """The URL cannot be read or written now."""


class Store:
    """The files below a URL.

    Args:
        url: The URL.

    Raises:
        ConfigError: Its file system is unknown, not installed, or cannot create files exclusively.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme = self.url.partition("://")[0]
        extra = _EXCLUSIVE.get({"gcs": "gs", "s3a": "s3", "local": "file"}.get(scheme, scheme))
        if extra is None:
            raise ConfigError(
                f"cannot keep a batch at {url}: {scheme!r} cannot create a file exclusively, which keeps two drivers apart",
                hint=f"Use one of: {', '.join(f'{name}://' for name in _EXCLUSIVE)}, or a folder.",
                is_usage=True,
            )
        try:
            core = importlib.import_module("fsspec.core")
            self._system, self._root = core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            hint = f"Install it with: {install_command(extra)}"
            raise ConfigError(f"{scheme}:// needs another package ({error})", hint=hint) from error
        except ValueError as error:
            raise ConfigError(f"{url} is not valid: {error}", is_usage=True) from error
        if self._system.async_impl:
            # What fails there is raised here; the libraries also print it, some of it when it is of no importance.
            self._system.loop.set_exception_handler(lambda loop, context: None)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self.read_all([name])[0]

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of several files, which are read at the same time; of one larger than any part, the start."""
        paths = [self._path(name) for name in names]
        how: dict[str, Any] = {"recursive": False, "on_error": "return", "end": _MAX_BYTES}
        with self._errors("read"):
            contents: dict[str, Any] = self._system.cat(paths, **how)
            results = [contents[path] for path in paths]
            for content in results:
                if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                    raise content
        return [content if isinstance(content, bytes) else None for content in results]

    def create(self, name: str, data: bytes) -> bool:
        """Create a file; return False if there is another one.

        Raises:
            Unavailable: It is not known whether the file was created; try again.
        """
        try:
            with self._errors("write"):
                self._create(self._path(name), data)
        except Unavailable:
            # Services report a file that is there in different ways, and an answer may be lost.
            with contextlib.suppress(Unavailable):
                if (content := self.read(name)) is not None:
                    return content == data
            raise
        return True

    def _create(self, path: str, data: bytes) -> None:
        if self._is_local:
            # What a kill leaves of a file must not take its name.
            make_private_folder(Path(path).parent)
            create_atomically(path, data)
        else:
            self._system.pipe_file(path, data, mode="create")

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, whatever there was."""
        path = self._path(name)
        with self._errors("write"):
            if self._is_local:
                make_private_folder(Path(path).parent)
            self._system.pipe_file(path, data)

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[BinaryIO]:
        """Open a file to read it. Raises FileNotFoundError if there is none."""
        with self._errors("read"), self._system.open(self._path(name), "rb") as file:
            # Files on S3 and Google Cloud Storage cannot read a line up to a limit.
            yield io.BufferedReader(file)

    def put(self, name: str, source: Path) -> None:
        """Copy a file of this machine, as a whole or not at all; one that is there has the same content."""
        path = self._path(name)
        with self._errors("write"):
            if self._is_local:
                make_private_folder(Path(path).parent)
                with contextlib.suppress(FileExistsError):
                    create_atomically(path, lambda: _pieces(source))
            else:
                self._system.put_file(str(source), path)

    def list(self, name: str) -> list[str]:
        """Return the names in a folder, in order."""
        with self._errors("read"):
            try:
                found = self._system.ls(self._path(name), detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def remove(self, names: Sequence[str] | None = None) -> None:
        """Remove files, or everything."""
        with self._errors("write"), contextlib.suppress(FileNotFoundError):
            if names is None:
                self._system.rm(self._root, recursive=True)
            elif names:
                self._system.rm([self._path(name) for name in names])

    def require_exclusive(self) -> None:
        """Raise an error unless the service keeps its promise that it does not replace a file."""
        name = f"probe-{secrets.token_hex(8)}"
        is_created, is_replaced = self.create(name, b"1"), self.create(name, b"2")
        self.remove([name])
        if not is_created or is_replaced:
            raise ConfigError(
                f"cannot keep a batch at {self.url}: the service replaces files that exist (no conditional writes)",
                hint="Use a service with conditional writes (If-None-Match), or a folder.",
            )

    @property
    def _is_local(self) -> bool:
        return "file" in self._system.protocol

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Generator[None]:
        try:
            yield
        except SessionError:
            raise
        # A file system of fsspec raises whatever its service's library does.
        except Exception as error:
            if verb == "read" and isinstance(error, FileNotFoundError):
                raise
            reason = str(error).strip() or type(error).__name__
            raise Unavailable(
                f"cannot {verb} {self.url}: {reason}",
                hint="Check the address, the network and your rights.",
            ) from error


# -- parts -------------------------------------------------------------------------------


def _part(number: int) -> str:
    return f"parts/{number // 1_000_000:03}/{number // 1000 % 1000:03}/{number % 1000:03}"


def _segment(number: int) -> str:
    return f"segments/{number // 1000:03}/{number % 1000:03}"


def _driver(number: int, driver: str) -> str:
    return f"drivers/{number:09}-{driver}"


def _pieces(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        while piece := opened.read(_PIECE):
            yield piece


def encode_part(
    number: int, driver: str, changes: Sequence[Change], *, has_more: bool = False
) -> bytes:
    """Return the content of a part; with `has_more`, its changes count once the next part is there, too."""
    body = zlib.compress(json.dumps(changes, separators=(",", ":")).encode(), 1)
    header = {"part": number, "driver": driver, "more": has_more, "size": len(body)}
    return json.dumps({**header, "sha256": _digest(number, body)}).encode() + b"\n" + body


_Part: TypeAlias = tuple[str, bool, list[Change]]
"""The driver that wrote a part, True if its changes count only together with the next part, and the changes."""


def _decode_parts(file: BinaryIO, first: int, count: int, name: str) -> Iterator[_Part]:
    """Yield each part in a file.

    Args:
        file: A part, or a segment.
        first: The number of its first part.
        count: How many there are.
        name: The name of the file, for errors.

    Raises:
        SessionError: It is damaged, or larger than any part can be.
    """
    for number in range(first, first + count):
        try:
            header = to_mapping(json.loads(file.readline(_MAX_BYTES)))
            size = header["size"]
            if type(size) is not int or not 0 <= size <= _MAX_BYTES:
                raise ValueError
            body = file.read(size)
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(body, _MAX_BYTES)
            is_whole = unpacking.eof and header["sha256"] == _digest(number, body)
            has_more = count == 1 and file.read(1)
            if header["part"] != number or not is_whole or has_more:
                raise ValueError
            yield header["driver"], header.get("more", False), json.loads(text)
        except (ValueError, LookupError, RecursionError, zlib.error) as error:
            hint = "Restore the file from a copy or an earlier version."
            raise SessionError(f"{name} is damaged", hint=hint) from error


def _digest(number: int, body: bytes) -> str:
    return hashlib.sha256(b"%d\n" % number + body).hexdigest()


def _read_parts(store: Store, number: int) -> Iterator[_Part]:
    """Yield the parts from a number on, wherever they are.

    Raises:
        SessionError: One is damaged, or cannot be read.
    """
    count, is_missing = 1, False
    while True:
        if is_missing or number % _PER_FOLDER == 0:
            before = number
            for part in _read_segment(store, number):
                yield part
                number += 1
            if is_missing and number == before:
                return
        # Mostly there is nothing new.
        last = min(number + count, (number // _PER_FOLDER + 1) * _PER_FOLDER)
        count, is_missing = min(2 * count, _FETCHED_AT_ONCE), False
        names = [_part(part) for part in range(number, last)]
        for name, content in zip(names, store.read_all(names), strict=True):
            # The end, or merged since.
            if is_missing := content is None:
                break
            yield from _decode_parts(io.BytesIO(content), number, 1, f"{store.url}/{name}")
            number += 1


def _apply_parts(store: Store, folder: Path, first: int) -> tuple[int, int]:
    """Apply the parts from a number on to a copy.

    Returns:
        The number of the first part that is not applied, as others that count together with it are missing, and that
        of the first one that does not exist.

    Raises:
        SessionError: A part is damaged, or something cannot be read or written.
    """
    begun, number, last_driver = first, first, None
    with tempfile.TemporaryFile("w+", dir=folder.parent) as waiting:
        for driver, has_more, changes in _read_parts(store, first):
            if driver != last_driver:  # which was stopped in the middle
                waiting.truncate(waiting.seek(0))
                begun, last_driver = number, driver
            number += 1
            if has_more:
                waiting.write(f"{json.dumps(changes)}\n")
                continue
            waiting.seek(0)
            for line in waiting:
                apply_changes(folder, json.loads(line), durable=False)
            apply_changes(folder, changes, durable=False)
            waiting.truncate(waiting.seek(0))
            begun = number
    return begun, number


def _has_segment(store: Store, number: int) -> bool:
    name = _segment(number)
    return name.rpartition("/")[2] in store.list(name.rpartition("/")[0])


def _read_segment(store: Store, number: int) -> Iterator[_Part]:
    """Yield the parts from a number on that are in a segment; none if it does not exist."""
    first, name = number - number % _PER_FOLDER, _segment(number // _PER_FOLDER)
    with contextlib.suppress(FileNotFoundError), store.open(name) as file:
        parts = _decode_parts(file, first, _PER_FOLDER, f"{store.url}/{name}")
        yield from itertools.islice(parts, number - first, None)


# -- the copy ----------------------------------------------------------------------------


def _copy_folder(url: str) -> Path:
    """The folder of the copy of a batch, which may not exist."""
    url = url.rstrip("/")
    name = re.sub(r"[^\w.-]", "-", url.rpartition("/")[2]) or "batch"
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return paths.state_dir() / "batches" / digest / name


def _save_copy(
    folder: Path, url: str, number: int, driver: str | None, *, first: str | None
) -> None:
    """Record what a copy has.

    Args:
        folder: The copy.
        url: Where the batch is.
        number: The number of the next part.
        driver: The last driver of this machine.
        first: The name of the first driver of the batch; None if the folder may have something else than the parts.
    """
    fields = {"url": url, "next": number, "driver": driver, "first": first}
    write_private(folder.parent / COPY, json.dumps(fields) + "\n")


def is_driven_here(folder: Path) -> bool:
    """Return True if a process of this machine drives the batch of a copy."""
    return is_locked(folder.parent / "driving")


def find_folder(text: str) -> Path:
    """Return the folder of a batch on this machine: for a URL, its copy with all that is sealed.

    Raises:
        ConfigError: There is no batch.
        SessionError: It is damaged, or cannot be read.
    """
    url = text if is_url(text) else read_copy(Path(text).absolute()).get("url")
    if url is None:
        return Path(text)
    folder = _copy_folder(url)
    with hold_lock(folder.parent / "lock", None):
        # A driver of this machine keeps its copy up to date.
        if not is_driven_here(folder):
            _update(Store(url), folder)
    return folder


def find_new_folder(text: str) -> Path:
    """Return the folder for a new batch: for a URL, an empty one for its copy.

    Raises:
        ConfigError: There is a batch.
        SessionError: It cannot be read.
    """
    if not is_url(text):
        return Path(text)
    store, folder = Store(text), _copy_folder(text)
    with hold_lock(folder.parent / "lock", None):
        driver = read_copy(folder).get("driver")
        if is_driven_here(folder):
            raise _already(store.url)
        _find_start(store, driver)
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
        _save_copy(folder, store.url, 0, driver, first=None)
    return folder


def _find_start(store: Store, driver: str | None) -> int:
    """Return the number of the first part of a new batch.

    It follows the parts of a driver that was killed before it had sealed all of its first files.

    Args:
        store: The URL.
        driver: The last driver of this machine, which has ended.

    Raises:
        ConfigError: There is a batch, or another driver may still be sealing its first files.
    """
    number, last = 0, driver
    # The first part is never deleted.
    for writer, has_more, _ in _read_parts(store, 0):
        if not has_more:
            raise _already(store.url)
        number, last = number + 1, writer
    if last != driver:
        # None are left if what was there was removed in part.
        for name in store.list("drivers")[-1:]:
            if is_alive(parse_driver(store.read(f"drivers/{name}") or b"")):
                raise _already(store.url)
    return number


def _already(url: str) -> ConfigError:
    return ConfigError(f"{url} already contains a batch", hint=f"Continue it: {_resume(url)}")


def _resume(url: str) -> str:
    return f"amplifier batch resume {shlex.quote(url)}"


def _update(store: Store, folder: Path) -> int:
    """Bring a copy up to date, and return the number of the next part.

    Raises:
        ConfigError: There is no batch.
        SessionError: It is damaged, or something cannot be read or written.
    """
    copy, drivers = read_copy(folder), store.list("drivers")
    # A driver that was killed leaves changes that were not sealed; and there may be another batch than before.
    is_usable = folder.exists() and drivers[:1] == [copy.get("first")]
    first, driver = int(copy["next"]) if is_usable else 0, copy.get("driver")
    _save_copy(folder, store.url, first, driver, first=None)
    if not first:
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
    applied, number = _apply_parts(store, folder, first)
    if applied == 0:
        shutil.rmtree(folder)
        if number:
            raise SessionError(
                f"the first files of the batch at {store.url} are incomplete",
                hint="Try again while its driver is running, or a minute later start the batch again: amplifier batch run "
                f"PLAN INPUT -o {shlex.quote(store.url)}",
            )
        (folder.parent / COPY).unlink()
        hint = f"Start one: amplifier batch run PLAN INPUT -o {shlex.quote(store.url)}"
        raise ConfigError(f"there is no batch at {store.url}", hint=hint, is_usage=True)
    if drivers and (content := store.read(f"drivers/{drivers[-1]}")) is not None:
        write_private(folder / DRIVER, content.decode("utf-8", "replace"))
    if applied != first:
        # Each file by itself would take much longer.
        os.sync()
    _save_copy(folder, store.url, applied, driver, first=drivers[0] if drivers else None)
    return number


# -- the driver --------------------------------------------------------------------------


@contextlib.contextmanager
def driving(batch: BatchFolder, *, take_over: bool = False) -> Generator[None]:
    """Drive a batch: what changes in its folder is sealed at its URL, if it has one.

    Args:
        batch: The batch.
        take_over: Whether to do so while another driver seems to be alive.

    Raises:
        SessionError: Another driver is alive, or has taken over; or the URL cannot be read or written.
    """
    copy, folder = read_copy(batch.path), batch.path
    if not copy:
        yield
        return
    store = Store(copy["url"])
    lock = folder.parent / "driving"
    with holding(lock, folder.name, f"the batch at {store.url}", store.url):
        driver = _Driver(batch, store, _take_over(batch, store, take_over))
        batch.sealer = driver
        try:
            yield
        except BaseException:
            with contextlib.suppress(SessionError):  # the first error is the cause
                driver.close()
            raise
        finally:
            batch.sealer = Sealer()
        driver.close()


_Taken: TypeAlias = tuple[str, int, Replica, Iterator[tuple[list[Change], bool]]]
"""The id of a driver, the number of its first part, what is sealed, and the parts that follow at once."""


def _take_over(batch: BatchFolder, store: Store, take_over: bool) -> _Taken:
    """Seal the first part of a new driver."""
    folder, driver = batch.path, secrets.token_hex(8)
    store.require_exclusive()
    for _ in range(_MAX_RACES):
        with hold_lock(folder.parent / "lock", None):
            copy = read_copy(folder)
            is_new = not copy["next"]
            if is_new:
                number = _find_start(store, copy["driver"])
            else:
                number, copy = _update(store, folder), read_copy(folder)
                other = read_driver(folder)
                # The one of this machine has ended: its lock is free.
                if not take_over and is_alive(other) and other["id"] != copy["driver"]:
                    ago = max(0, round(time.time() - other["time"]))
                    raise SessionError(
                        f"another driver runs the batch at {store.url}: {_name_driver(other)}, alive {ago} s ago",
                        hint="Stop it, or wait a minute if it is gone; --take-over does not wait, and stops it at its "
                        "next step.",
                    )
            sealed = TopFiles(folder, known=not is_new)
            parts = split_changes(sealed.changes())
            changes, has_more = next(parts, ([], False))
            part = encode_part(number, driver, changes, has_more=has_more)
            # Written first: whoever gets to seal this part, it is the first of a driver and must be kept.
            store.write(_driver(number, driver), _describe_driver(driver))
            _save_copy(folder, store.url, number, driver, first=None)
            # Merging the parts frees the number of one that this machine has not seen.
            is_created = store.create(_part(number), part)
            if is_created and not _has_segment(store, number // _PER_FOLDER):
                _save_copy(folder, store.url, number + 1, driver, first=None)
                batch.refresh()
                return driver, number, sealed, parts
            # In a merged folder, it would be read instead of the part in the segment.
            store.remove([_driver(number, driver), *([_part(number)] if is_created else [])])
            _save_copy(folder, store.url, copy["next"], copy["driver"], first=copy["first"])
            if is_new:
                raise _already(store.url)
    raise SessionError(f"another driver keeps writing to {store.url}", hint="Stop it first.")


def _name_driver(driver: dict[str, Any]) -> str:
    return f"process {driver.get('pid')} on {driver.get('host')}"


def _describe_driver(driver: str, *, ended: bool = False) -> bytes:
    fields = {"id": driver, "host": socket.gethostname(), "pid": os.getpid()}
    return json.dumps({**fields, "time": time.time(), "ended": ended}).encode()


@contextlib.contextmanager
def removing_unbegun(folder: Path) -> Generator[None]:
    """Remove what is at the URL of a new batch whose folder is removed in the block, as no row has begun."""
    try:
        yield
    finally:
        copy = read_copy(folder)
        if copy and not (folder / "batch.json").exists():
            if number := copy["next"]:
                store = Store(copy["url"])
                # The driver may have ended before it had sealed all files.
                number += sum(driver == copy["driver"] for driver, *_ in _read_parts(store, number))
                # If the next part is free, no other driver has taken over.
                if store.create(_part(number), b""):
                    store.remove()
            (folder.parent / COPY).unlink(missing_ok=True)


class _Driver(Sealer):
    """Seals what changes, in a thread of its own.

    Args:
        batch: The batch.
        store: Its URL.
        taken: See `_take_over`.
    """

    def __init__(self, batch: BatchFolder, store: Store, taken: _Taken) -> None:
        self.lock = threading.RLock()
        self.is_remote = True
        self.notice: Callable[[str], None] = to_stderr
        self._folder = batch.path
        self._store = store
        self._id, self._first, self._top, parts = taken
        self._next = self._first + 1
        self._rows: dict[str, Replica] = {}
        self._touched: set[str] = set()
        self._reopened: set[str] = set()
        self._ended: set[str] = set()
        self._waiting: list[tuple[str | None, Future[str | None]]] = []
        self._error: SessionError | None = None
        self._wake = threading.Condition(self.lock)
        self._is_closed = False
        self._is_exact = True
        self._hurried_at: float | None = None
        self._alive_at = time.monotonic()
        self._compacting = self._start(self._compact)
        self._write(parts)
        self._thread = self._start(self._run)

    def begin(self, key: str, session: str) -> None:
        with self.lock:
            self._ended.discard(key)
            if key in self._rows:
                self._reopened.add(key)
                return
            folders = find_folders(self._folder, session, has_own=True)
            folders += [f"{SESSIONS}/{session}", f"{WORK}/{session}"]
            self._rows[key] = Replica(self._folder, folders, known=True)

    def end(self, key: str) -> None:
        with self.lock:
            if key in self._rows:
                self._touched.add(key)
                self._ended.add(key)

    async def seal(self, key: str | None = None, folders: Iterable[str] = ()) -> str | None:
        sealed: Future[str | None] = Future()
        with self.lock:
            if self._error is not None:
                raise self._error
            if key in self._rows:
                self._rows[key].folders.update(dict.fromkeys(folders))
                self._touched.add(key)
            self._waiting.append((key, sealed))
            self._wake.notify()
        return await asyncio.wrap_future(sealed)

    def hurry(self) -> None:
        with self.lock:
            self._hurried_at = time.monotonic()
            self._wake.notify()

    def close(self) -> None:
        """Seal what is left, and end.

        Raises:
            SessionError: Another driver has taken over, or the URL cannot be written.
        """
        with self.lock:
            self._is_closed = True
            self.hurry()
        self._thread.join()
        self._compacting.join()
        if self._error is not None:
            raise self._error
        # What is missing after a failure is noticed: others wait a minute, and the copy is made again.
        with contextlib.suppress(SessionError):
            ended = _describe_driver(self._id, ended=True)
            self._store.write(_driver(self._first, self._id), ended)
            drivers = self._store.list("drivers")
            first = drivers[0] if self._is_exact else None
            _save_copy(self._folder, self._store.url, self._next, self._id, first=first)

    def _start(self, function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, name="seal", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self.lock:
                if not self._waiting and not self._is_closed:
                    self._wake.wait(_COMMIT_SECONDS)
                is_last = self._is_closed
                waiting, self._waiting = self._waiting, []
            failed: Mapping[str | None, str] = {}
            try:
                if self._error is None:
                    failed = self._commit()
            except SessionError as error:
                self._error = error
            # Without it, the rows would wait for ever.
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                self._error = SessionError(f"cannot write {self._store.url}: {problem}")
            for key, future in waiting:
                is_wanted = future.set_running_or_notify_cancel()
                if is_wanted and self._error is not None:
                    future.set_exception(self._error)
                elif is_wanted:
                    future.set_result(failed.get(key))
            self._report_alive()

    def _commit(self) -> Mapping[str | None, str]:
        """Seal what has changed, and return why the files of some rows cannot be read.

        Raises:
            SessionError: Another driver has taken over, or nothing can be sealed.
        """
        failed: dict[str | None, str] = {}
        with self.lock:
            touched, self._touched = self._touched, set()
            reopened, self._reopened = self._reopened, set()
            ended, self._ended = self._ended, set()
            # In this order: a session may be ahead of the journal, but not behind it.
            top = self._top.changes()
        for key in reopened:
            self._rows[key].expect_repairs()

        def find_changes() -> Iterator[Change]:
            yield from top
            for key in touched:
                try:
                    yield from self._rows[key].changes()
                except SessionError as error:
                    failed[key] = error.message
                    if key in ended:
                        self._is_exact = False
                        self.notice(error.message)

        self._write(split_changes(find_changes()))
        with self.lock:
            for key in ended - self._reopened - self._touched - failed.keys():
                del self._rows[key]
        return failed

    def _write(self, parts: Iterable[tuple[list[Change], bool]]) -> None:
        """Seal parts, however long it takes.

        Raises:
            SessionError: Another driver has sealed the next part, or the URL cannot be written while the batch ends.
        """
        for changes, has_more in parts:
            self._write_part(encode_part(self._next, self._id, changes, has_more=has_more))
            self._report_alive()

    def _write_part(self, data: bytes) -> None:
        delay, begun = 0.5, time.monotonic()
        while (error := self._try_to_write(data)) is not None:
            hurried_at = self._hurried_at
            if hurried_at is not None and time.monotonic() > (
                max(begun, hurried_at) + _PATIENCE_SECONDS
            ):
                error.hint = f"Rows continue from what is there: {_resume(self._store.url)}"
                raise error
            if delay < 1:
                self.notice(f"{error.message}; rows wait until it works again")
            delay = min(2 * delay, _MAX_DELAY)
            with self.lock:
                self._wake.wait(delay if hurried_at is None else 1.0)
        if delay >= 1:
            self.notice(f"{self._store.url} works again")
        self._next += 1
        if self._next % _PER_FOLDER == 0 and not self._compacting.is_alive():
            self._compacting = self._start(self._compact)

    def _try_to_write(self, data: bytes) -> Unavailable | None:
        """Seal a part once, and return the error if it is to be tried again."""
        # A client may try for a minute before it reports anything.
        text = f"writing to {self._store.url} takes long; rows wait for it"
        slow = threading.Timer(_SLOW_SECONDS, self.notice, [text])
        slow.start()
        try:
            if not self._store.create(_part(self._next), data):
                raise self._taken_over()
        except Unavailable as error:
            return error
        finally:
            slow.cancel()
        return None

    def _taken_over(self) -> SessionError:
        message = f"another driver has taken over the batch at {self._store.url}"
        with contextlib.suppress(SessionError, ValueError, IndexError):
            name = self._store.list("drivers")[-1]
            message += f" ({_name_driver(json.loads(self._store.read(f'drivers/{name}') or b''))})"
        hint = f"Show its progress: amplifier batch status {shlex.quote(self._store.url)}"
        return SessionError(message, hint=hint)

    def _report_alive(self) -> None:
        if time.monotonic() > self._alive_at + _ALIVE_SECONDS and self._error is None:
            self._alive_at = time.monotonic()
            # A part that cannot be written is reported.
            with contextlib.suppress(SessionError):
                self._store.write(_driver(self._first, self._id), _describe_driver(self._id))

    def _compact(self) -> None:
        """Merge full folders of parts into segments."""
        # What fails is done by the next driver; until then, the parts are there.
        with contextlib.suppress(SessionError, OSError):
            kept = {int(name.partition("-")[0]) for name in self._store.list("drivers")}
            for segment in range(self._next // _PER_FOLDER):
                first = segment * _PER_FOLDER
                names = self._store.list(_part(first).rpartition("/")[0])
                there = {first + int(name) for name in names if name.isdigit()}
                if len(there) == _PER_FOLDER and not _has_segment(self._store, segment):
                    self._merge(first)
                if there - kept and _has_segment(self._store, segment):
                    self._store.remove([_part(number) for number in sorted(there - kept)])

    def _merge(self, first: int) -> None:
        with tempfile.NamedTemporaryFile(dir=self._folder.parent) as merged:
            for begin in range(first, first + _PER_FOLDER, _FETCHED_AT_ONCE):
                names = [_part(number) for number in range(begin, begin + _FETCHED_AT_ONCE)]
                for name, content in zip(names, self._store.read_all(names), strict=True):
                    if content is None:
                        raise FileNotFoundError(name)
                    merged.write(content)
            merged.flush()
            self._store.put(_segment(first // _PER_FOLDER), Path(merged.name))
