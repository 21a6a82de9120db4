"""Archives: a path or a URL → unpacked files in the cache.

    cache/archives/<hash of the bytes>/content/…    its files
                                      /source.json
    cache/archives/urls/<hash of a URL>.json        hash and validators of the last download

An archive is unpacked into a staging folder that is renamed into place, so a folder named after
a hash is always complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from amplifier_app.base.locks import hold_lock
from amplifier_app.plan.source_spec import ArchiveSource, without_password
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch import unpack
from amplifier_app.sources.fetch.download import Answer, Validators, download
from amplifier_app.sources.fetch.staging import staging
from amplifier_support.atomic_write import write_private
from amplifier_support.clock import utc_now
from amplifier_support.private_files import make_private_folder, make_tree_private
from amplifier_support.programs import Stopped

_CHUNK = 1024 * 1024


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

    def fetch(
        self,
        source: ArchiveSource,
        *,
        sha256: str | None = None,
        stop: threading.Event | None = None,
    ) -> Unpacked:
        """Fetch and unpack an archive.

        Args:
            source: What to fetch.
            sha256: The locked hash, in hexadecimal.
            stop: Set it to cancel.

        Raises:
            SourceError: The archive is unavailable, not allowed, or has another hash.
            Stopped: `stop` was set.
        """
        if source.is_wheel:
            _check_wheel(source.file_name)
        wanted = source.sha256 or sha256
        if wanted is not None and (home := self._home(source, wanted)).is_dir():
            # Same hash, same bytes: the URL does not matter.
            return self._unpack(source, home, wanted)
        if source.is_local:
            found = self._from_file(source, wanted, stop)
        else:
            found = self._from_url(source, wanted, stop)
        return self._unpack(source, self._home(source, found), found)

    def _unpack(self, source: ArchiveSource, home: Path, sha256: str) -> Unpacked:
        content = home / "content"
        root = content if source.is_wheel else unpack.only_folder(content)
        folder = (root / source.subdirectory).resolve()
        if not folder.is_relative_to(root.resolve()) or not folder.is_dir():
            raise SourceError(
                f"{source.shown} has no folder {source.subdirectory!r}",
                hint="Check the part after '#subdirectory='",
            )
        return Unpacked(folder if source.subdirectory else root, f"sha256:{sha256}")

    # -- where the bytes come from -----------------------------------------------------

    def _from_file(
        self, source: ArchiveSource, wanted: str | None, stop: threading.Event | None
    ) -> str:
        file = Path(source.location)
        if not file.is_file():
            raise SourceError(f"{file} does not exist", hint="Check the module's 'source'")
        with staging(self._root) as stage:
            copy = stage / "archive"
            try:
                found = _copy(file, copy, source, stop)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise SourceError(f"cannot read {file}: {reason}") from error
            _check_hash(source, wanted, found)
            self._keep(source, copy, found, stop)
        return found

    def _from_url(
        self, source: ArchiveSource, wanted: str | None, stop: threading.Event | None
    ) -> str:
        name = hashlib.sha256(source.location.encode()).hexdigest()[:32]
        note = self._root / "urls" / f"{name}.json"
        known = _read_note(note)
        if known is not None and not self._home(source, known["sha256"]).is_dir():
            known = None
        if self._offline:
            if known is None:
                raise SourceError(
                    f"{source.shown} is not in the cache and cannot be downloaded offline",
                    hint="Run once without --offline",
                )
            _check_hash(source, wanted, known["sha256"])
            return known["sha256"]
        with staging(self._root) as stage:
            copy = stage / "archive"
            before = Validators(known["etag"], known["modified"]) if known else None
            answer = download(source, copy, before, stop)
            if answer is None:
                assert known is not None
                _check_hash(source, wanted, known["sha256"])
                return known["sha256"]
            _check_hash(source, wanted, answer.sha256)
            self._keep(source, copy, answer.sha256, stop)
            self._note(note, source, answer)
        return answer.sha256

    def _note(self, note: Path, source: ArchiveSource, answer: Answer) -> None:
        facts = {
            "url": without_password(source.location),
            "sha256": answer.sha256,
            "etag": answer.validators.etag,
            "modified": answer.validators.modified,
        }
        make_private_folder(note.parent)
        write_private(note, json.dumps(facts).encode())

    # -- the cache ---------------------------------------------------------------------

    def _home(self, source: ArchiveSource, sha256: str) -> Path:
        # Unpacking a wheel moves some of its files.
        return self._root / (f"{sha256}-wheel" if source.is_wheel else sha256)

    def _keep(
        self, source: ArchiveSource, archive: Path, sha256: str, stop: threading.Event | None
    ) -> None:
        home = self._home(source, sha256)
        if home.is_dir():
            return
        with hold_lock(home.with_suffix(".lock"), stop), staging(self._root) as stage:
            if home.is_dir():
                return
            content = stage / "home" / "content"
            content.mkdir(parents=True)
            unpack.unpack(archive, source.file_name, content, stop=stop)
            if source.is_wheel:
                unpack.spread_wheel(content)
            record = {
                "source": source.shown,
                "sha256": sha256,
                "fetched": utc_now().isoformat(timespec="seconds"),
            }
            (stage / "home" / "source.json").write_text(json.dumps(record), encoding="utf-8")
            make_tree_private(stage / "home")
            (stage / "home").rename(home)


def _copy(file: Path, copy: Path, source: ArchiveSource, stop: threading.Event | None) -> str:
    """Copy while hashing, so that what is unpacked is what was hashed."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as given, copy.open("xb") as taken:
        while chunk := given.read(_CHUNK):
            if stop is not None and stop.is_set():
                raise Stopped(source.file_name)
            size += len(chunk)
            if size > unpack.MAX_BYTES:
                raise SourceError(
                    f"{source.shown} is larger than {unpack.MAX_BYTES // 1024**2} MiB"
                )
            digest.update(chunk)
            taken.write(chunk)
    return digest.hexdigest()


def _check_hash(source: ArchiveSource, wanted: str | None, found: str) -> None:
    if wanted is not None and wanted != found:
        raise SourceError(
            f"{source.shown} does not match its hash: SHA-256 is {found}, expected {wanted}",
            hint="The archive was changed, or the expected hash is of another archive",
        )


def _read_note(note: Path) -> dict[str, Any] | None:
    # A missing or damaged note only costs another download.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        facts = json.loads(note.read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("sha256", "etag", "modified")}
    return None


def _check_wheel(file_name: str) -> None:
    try:
        tags = parse_wheel_filename(file_name)[3]
    except InvalidWheelFilename as error:
        raise SourceError(f"{file_name!r} is not a valid wheel file name") from error
    if tags.isdisjoint(sys_tags()):
        made_for = ", ".join(sorted(map(str, tags)))
        raise SourceError(f"{file_name} is built for {made_for}, not for this Python and machine")
