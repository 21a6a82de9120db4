"""Bundles: sessions as one archive, and what an archive must be to become sessions again.

    manifest.json                    the format, the sessions, and size and SHA-256 of each file
    sessions/<id>/metadata.json …    the files of each session

Only the files of `_is_taken` are in a bundle: copies of changed files, remembered approvals and whatever
else modules keep in a session's folder are not. A bundle of someone else is data: its plan, which can
run code, is stored under another name, and of its metadata only facts about the conversation are kept.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError, UsageError
from amplifier_app.sessions.folder import IMPORTED_PLAN, SessionFolder
from amplifier_app.sessions.fork import unfinished_session
from amplifier_app.sessions.store import SessionStore, new_session_id
from amplifier_app.sessions.summary import ID, SCHEMA_VERSION, WAITING_FILE, check_metadata
from amplifier_support import journal
from amplifier_support.fields import to_mapping
from amplifier_support.files import (
    create_atomically,
    make_private_folder,
    open_to_read,
    system_errors_as,
    write_private,
)
from amplifier_support.named_tuple import NamedTuple

FORMAT = "amplifier-sessions"

_FILES = ("metadata.json", "transcript.jsonl", "plan.yaml", "context.jsonl", WAITING_FILE)
_EVENTS = re.compile(r"events\.jsonl(\.[0-9]{1,4})?")
_OUTPUT = re.compile(r"tool-output/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_FILES = 20_000
_MAX_BYTES = 500_000_000
_MANIFEST = "manifest.json"
_LEVEL = 3
"""Of compression: half the time of the default for text of about a tenth more bytes."""

_FACTS = (
    *("created", "updated", "title", "name", "project", "profile", "provider", "model", "parent"),
    *("agent", "prompts", "depth", "usage", "forked_from", "prices"),
)
"""Metadata that an import keeps."""


# Writing


def write_bundle(
    file: Path, sessions: Iterable[SessionFolder], redact: Callable[[Any], Any], version: str
) -> None:
    """Write sessions, the first of which the others belong to, to a new file.

    Args:
        file: The file; it must not exist.
        sessions: The sessions.
        redact: Replaces secrets in text and data.
        version: The version of the program.

    Raises:
        SessionError: A session cannot be read, or the file cannot be written.
        ConfigError: There is no folder for temporary files.
    """
    folder = paths.temporary_dir()
    manifest: dict[str, Any] = {"format": FORMAT, "version": 1, "program": version, "sessions": {}}
    try:
        # The sizes come first in an archive: the contents are redacted into a file without a name.
        with (
            tempfile.TemporaryFile(dir=folder) as contents,
            tempfile.TemporaryFile(dir=folder) as packed,
        ):
            sizes: dict[str, int] = {}
            for session in sessions:
                listed = manifest["sessions"][session.id] = {}
                for name, path in _taken_files(session):
                    listed[name] = facts = _append(contents, _redacted(name, path, redact))
                    sizes[f"sessions/{session.id}/{name}"] = facts["bytes"]
            contents.seek(0)
            # Without a time and a name, the same sessions have the same bundle.
            with gzip.GzipFile("", "wb", _LEVEL, fileobj=packed, mtime=0) as stream:
                _write_tar(stream, json.dumps(manifest, indent=1).encode(), sizes, contents)
            create_atomically(file, lambda: _from_start(packed))
    except FileExistsError:
        raise SessionError(f"{file} already exists", hint="Choose another name.") from None
    except OSError as error:
        raise SessionError(f"cannot write {file}: {error.strerror}") from error


def _append(file: BinaryIO, pieces: Iterable[bytes]) -> dict[str, Any]:
    """Write pieces; returns their size and SHA-256 as the manifest has them."""
    size, digest = 0, hashlib.sha256()
    for piece in pieces:
        file.write(piece)
        digest.update(piece)
        size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _from_start(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(1 << 20), b"")


def _write_tar(stream: Any, manifest: bytes, sizes: Mapping[str, int], contents: BinaryIO) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        files = [(_MANIFEST, len(manifest), io.BytesIO(manifest))]
        for name, size, source in [
            *files,
            *((name, size, contents) for name, size in sizes.items()),
        ]:
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o600
            archive.addfile(member, source)


def _taken_files(session: SessionFolder) -> Iterator[tuple[str, Path]]:
    names = sorted(path.name for path in session.path.iterdir())
    output = session.path / "tool-output"
    if output.is_dir() and not output.is_symlink():
        names += sorted(f"tool-output/{path.name}" for path in output.iterdir())
    for name in filter(_is_taken, names):
        path = session.path / name
        if not path.is_symlink() and path.is_file():
            yield name, path


def _redacted(name: str, path: Path, redact: Callable[[Any], Any]) -> Iterator[bytes]:
    """The content of a file without secrets, in pieces. Raises SessionError."""
    with system_errors_as(SessionError, f"cannot read {path}"), open(path, "rb") as file:
        if ".jsonl" in name:
            yield from (_redacted_line(line, redact) for line in file)
        elif name.endswith(".json"):
            yield _redacted_line(file.read(), redact)
        else:
            yield str(redact(file.read().decode("utf-8", "replace"))).encode()


def _redacted_line(line: bytes, redact: Callable[[Any], Any]) -> bytes:
    end = b"\n" if line.endswith(b"\n") else b""
    record = journal.parse(line)
    if record is None:
        text = line.removesuffix(b"\n").decode("utf-8", "replace")
        return str(redact(text)).encode() + end if line.strip() else line
    changed = redact(record)
    return line if changed is record else journal.encode(changed).rstrip(b"\n") + end


def _is_taken(name: str) -> bool:
    return name in _FILES or bool(_EVENTS.fullmatch(name) or _OUTPUT.fullmatch(name))


# Reading


class Bundle(NamedTuple):
    """A checked bundle.

    Attributes:
        root: The session that the others belong to.
        files: The files of each session by id and name.
    """

    root: str
    files: dict[str, dict[str, bytes]]


class _Limited(io.RawIOBase):
    """Reads a stream up to a number of bytes, whatever it unpacks to."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = _MAX_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(data)
        if self._left < 0:
            raise SessionError(f"the bundle unpacks to more than {_MAX_BYTES:,} bytes")
        return data


def read_bundle(file: Path) -> Bundle:
    """Read and check a bundle; nothing is written.

    Raises:
        UsageError: The file does not exist.
        SessionError: It cannot be read, is not a bundle, or has something that no bundle has.
    """
    try:
        with open(open_to_read(file), "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            contents = _members(_Limited(stream))
    except gzip.BadGzipFile as error:
        raise SessionError(f"{file} is damaged: {error}") from error
    except FileNotFoundError as error:
        raise UsageError(f"cannot read {file}: no such file or directory") from error
    except OSError as error:
        raise SessionError(f"cannot read {file}: {error.strerror or error}") from error
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise SessionError(f"{file} is not a bundle: {error}") from error
    return _parse_contents(file, contents)


def _members(stream: Any) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                raise SessionError(f"the bundle has {member.name!r}, which is not a regular file")
            if member.name in contents:
                raise SessionError(f"the bundle has {member.name!r} twice")
            if len(contents) >= _MAX_FILES:
                raise SessionError(f"the bundle has more than {_MAX_FILES:,} files")
            if not (member.name == _MANIFEST or _parse_name(member.name)):
                raise SessionError(f"the bundle has an unexpected file: {member.name!r}")
            source = archive.extractfile(member)
            contents[member.name] = b"" if source is None else source.read()
    # The checksum is behind the end of the archive.
    while stream.read(1 << 20):
        pass
    return contents


def _parse_name(name: str) -> tuple[str, str] | None:
    """The session and the file that a name in a bundle means; None if it means none."""
    parts = name.split("/", 2)
    if len(parts) != 3 or parts[0] != "sessions" or not ID.fullmatch(parts[1]):
        return None
    return (parts[1], parts[2]) if _is_taken(parts[2]) else None


def _parse_contents(file: Path, contents: dict[str, bytes]) -> Bundle:
    manifest = journal.parse(contents.pop(_MANIFEST, b"")) or {}
    listed = manifest.get("sessions")
    if manifest.get("format") != FORMAT or not isinstance(listed, dict) or not listed:
        raise SessionError(f"{file} is not a bundle of sessions")
    if manifest.get("version") != 1:
        raise SessionError(f"{file} has the unsupported version {manifest.get('version')!r}")
    files: dict[str, dict[str, bytes]] = {}
    for name, data in contents.items():
        session_id, inner = cast("tuple[str, str]", _parse_name(name))
        files.setdefault(session_id, {})[inner] = data
    sessions = cast("dict[str, Any]", listed)
    for session_id, entries in sessions.items():
        held = files.get(session_id, {})
        if not isinstance(entries, dict) or set(cast("dict[str, Any]", entries)) != set(held):
            raise SessionError(f"the bundle is incomplete: session {session_id!r}")
        for name, data in held.items():
            digest = to_mapping(to_mapping(entries)[name]).get("sha256")
            if digest != hashlib.sha256(data).hexdigest():
                raise SessionError(f"the bundle is damaged: {session_id}/{name} has other contents")
        _require_conversation(session_id, held)
    if set(files) != set(sessions):
        raise SessionError("the bundle has files of sessions that its manifest does not list")
    return Bundle(next(iter(sessions)), files)


def _require_conversation(session_id: str, files: Mapping[str, bytes]) -> None:
    if journal.parse(files.get("metadata.json", b"")) is None:
        raise SessionError(f"the bundle is damaged: the metadata of session {session_id}")
    try:
        records = journal.read(files.get("transcript.jsonl", b"")).records
        journal.current_items(
            records, lambda record: not isinstance(record, dict) or "control" not in record
        )
    except (journal.Damaged, journal.UnknownControl) as error:
        raise SessionError(
            f"the bundle is damaged: the transcript of session {session_id}: {error}"
        ) from error


# Importing


def import_bundle(store: SessionStore, bundle: Bundle, *, new_ids: bool = False) -> list[str]:
    """Store the sessions of a bundle; those that others belong to come last.

    Args:
        store: Where to store them.
        bundle: The checked bundle.
        new_ids: Whether to give them new ids.

    Returns:
        Their ids, that of the root first.

    Raises:
        SessionError: An id is taken, or a session cannot be written.
    """
    ids = {session_id: session_id for session_id in bundle.files}
    if new_ids:
        root = new_session_id()
        ids = {old: f"{root}-{n}" for n, old in enumerate(ids)} | {bundle.root: root}
    ordered = [bundle.root, *(file for file in bundle.files if file != bundle.root)]
    # Left in reverse order: a session gets its name after those that it spawned.
    with ExitStack() as folders:
        for session_id in ordered:
            path = folders.enter_context(unfinished_session(store.root, ids[session_id]))
            _fill(path, ids[session_id], bundle.files[session_id], ids)
    return [ids[session_id] for session_id in ordered]


def _fill(path: Path, session_id: str, files: Mapping[str, bytes], ids: Mapping[str, str]) -> None:
    for name, data in files.items():
        if name == "metadata.json":
            metadata = _facts(json.loads(data), session_id, ids)
            data = json.dumps(metadata, indent=2).encode() + b"\n"
        target = path / (IMPORTED_PLAN if name == "plan.yaml" else name)
        if target.parent != path:
            make_private_folder(target.parent)
        write_private(target, data)


def _facts(metadata: Any, session_id: str, ids: Mapping[str, str]) -> dict[str, Any]:
    """The metadata to keep; the rest could change how the session runs here."""
    values = check_metadata(metadata).values
    facts = {key: values[key] for key in _FACTS if values.get(key) is not None}
    # A session that is here already does not get sub-sessions from a bundle.
    parent = ids.get(facts.pop("parent", ""))
    if parent is not None:
        facts["parent"] = parent
    return {"schema_version": SCHEMA_VERSION, "id": session_id, **facts, "imported": True}
