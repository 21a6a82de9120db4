"""Which projects the user trusts, and with what content.

    config_dir()/trust/          0700
        <hash of the path>.json  0600: one project, as it was when it was trusted

A record that is damaged, or that others could have written, is an error and grants no trust.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.file_writing import write_private
from amplifier_app.base.locks import changing_private
from amplifier_app.trust.content import MAX_BYTES, Content, Entry, compute_hash
from amplifier_support.clock import utc_now
from amplifier_support.files import open_regular
from amplifier_support.named_tuple import NamedTuple

_VERSION = 1


class Record(NamedTuple):
    """The record of a trusted project.

    Attributes:
        root: The project's folder.
        hash: Hash of the trusted content.
        time: When it was trusted, ISO 8601 in UTC.
        entries: The trusted content, to show what changed since.
        always: Whether it is trusted regardless of its content.
    """

    root: Path
    hash: str
    time: str
    entries: Mapping[str, Entry]
    always: bool = False

    def allows(self, content: Content) -> bool:
        """Return True if the project with this content is trusted."""
        return self.root == content.root and (self.always or self.hash == content.hash)


class TrustStore:
    """The projects one user trusts.

    Attributes:
        folder: The folder of the records.
    """

    def __init__(self) -> None:
        self.folder = paths.config_dir() / "trust"

    def record(self, root: Path) -> Record | None:
        """The record of a project; None if it was never trusted.

        Raises:
            ConfigError: The record is damaged, or others could have written it.
        """
        record = self._read(self._file(root))
        if record is not None and record.root != root:
            raise _damage_error(self._file(root), "it belongs to another project")
        return record

    def records(self) -> list[Record]:
        """The records of all trusted projects, sorted by folder.

        Raises:
            ConfigError: A record is damaged, or others could have written it.
        """
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        records = [record for file in files if (record := self._read(file)) is not None]
        return sorted(records, key=lambda record: str(record.root))

    def trust(self, content: Content, *, always: bool = False) -> Record:
        """Trust a project with this content.

        Args:
            content: The reviewed content.
            always: Trust the project regardless of its future content.

        Raises:
            ConfigError: The record cannot be written.
        """
        now = utc_now().isoformat(timespec="seconds")
        record = Record(content.root, content.hash, now, content.entries, always)
        self._write(record)
        return record

    def revoke(self, root: Path) -> bool:
        """Revoke trust in a project, even if its record is damaged; whether there was a record.

        Raises:
            ConfigError: The record cannot be removed.
        """
        file = self._file(root)
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"cannot remove {file}: {error.strerror}") from error
        return True

    def _file(self, root: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"

    def _read(self, file: Path) -> Record | None:
        try:
            descriptor = open_regular(file, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = str(error.strerror).lower()
            raise ConfigError(f"cannot read trust record {file}: {why}") from error
        with open(descriptor, "rb") as stream:
            problem = _distrust(self.folder, os.fstat(descriptor))
            if problem:
                hint = f"If no one else changed it: chmod go-w '{self.folder}' '{file}'"
                raise ConfigError(f"trust record {file} {problem}", hint=hint)
            return _parsed(stream.read(MAX_BYTES), file)

    def _write(self, record: Record) -> None:
        data = {
            "version": _VERSION,
            "root": str(record.root),
            "hash": record.hash,
            "time": record.time,
            "always": record.always,
            "entries": {name: list(entry) for name, entry in record.entries.items()},
        }
        file = self._file(record.root)
        # Writers of a record are serialised; readers always see one complete version.
        with changing_private(file.with_suffix(".lock"), "write to"):
            write_private(file, json.dumps(data) + "\n")


def _distrust(folder: Path, facts: os.stat_result) -> str | None:
    """Why others may have written the record; None if they cannot have."""
    if folder.is_symlink():
        return "is behind a link"
    if os.name == "nt":
        return None
    for status in (facts, folder.stat()):
        if status.st_uid != os.geteuid() != 0:
            return "belongs to another user"
        if status.st_mode & 0o022:
            return "is writable by others"
    return None


def _parsed(data: bytes, file: Path) -> Record:
    read: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(data)
    if not isinstance(read, dict):
        raise _damage_error(file, "unknown format")
    version = read.get("version")
    if isinstance(version, int) and version > _VERSION:
        message = "the trust record was written by a newer version of Amplifier"
        raise ConfigError(message, location=Location(str(file)), hint="Update Amplifier.")
    try:
        entries = {name: _entry(fields) for name, fields in read["entries"].items()}
        record = Record(
            Path(_text(read["root"])),
            _text(read["hash"]),
            _text(read["time"]),
            entries,
            read["always"] is True,
        )
        belongs = version == _VERSION and compute_hash(entries) == record.hash
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damage_error(file, "unknown format") from None
    if not belongs:
        raise _damage_error(file, "its content is inconsistent")
    return record


def _entry(fields: Any) -> Entry:
    kind, digest, size, text = cast("list[Any]", fields)
    if kind not in ("file", "executable", "link", "special") or not isinstance(size, int):
        raise ValueError(kind)
    return Entry(kind, _text(digest), size, None if text is None else _text(text))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value).__name__)
    return value


def _damage_error(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the trust record is damaged: {why}",
        location=Location(str(file)),
        hint="It grants no trust. Remove it, then review and trust the project again: "
        "amplifier trust",
    )
