"""Fetches bundles: a source → local files, by the same rules as module sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.paths import is_offline
from amplifier_app.plan.documents.bundles import Fetched
from amplifier_app.plan.documents.namespaces import Checkout
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    GitSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)
from amplifier_app.sources import lockfile
from amplifier_app.sources.errors import DriftError, SourceError
from amplifier_app.sources.fetch.git import GitCache
from amplifier_app.sources.fetch.staging import content_hash
from amplifier_app.sources.lockfile import Lock, LockEntry, lock_path
from amplifier_support.files import system_errors_as


class Fetcher:
    """Fetches the bundles of one plan.

    Args:
        offline: Use only the cache. Defaults to AMPLIFIER_OFFLINE.
        locked: Require every bundle to match the lock.
        keep: Use the lock, if there is one, for the bundles in it.
        lock: The lock file; None for the plan's own.
        plugins: Whether to read the plugins that it names.
        project: The folder of the project, which has the locks of the project's profiles.

    Attributes:
        found: Source, without its password → lock entry.
        reads_plugins: Whether to read the plugins that it names.
    """

    def __init__(
        self,
        *,
        offline: bool | None = None,
        locked: bool = False,
        keep: bool = False,
        lock: Path | None = None,
        plugins: bool = True,
        project: Path | None = None,
    ) -> None:
        self.found: dict[str, LockEntry] = {}
        self.reads_plugins = plugins
        self._offline = is_offline() if offline is None else offline
        self._locked = locked
        self._keep = keep
        self._lock_file = lock
        self._project = project
        self._locks: dict[Path, Mapping[str, LockEntry]] = {}

    def fetch(self, source: str, plan: Path) -> Fetched:
        """Fetch a bundle; see `amplifier_app.plan.documents.bundles.BundleFetcher`.

        Raises:
            SourceError: The bundle is unavailable, not allowed, or differs from its lock entry.
            ConfigError: The lock is missing or damaged.
        """
        try:
            parsed = parse_source(source, plan.parent)
        except SourceSyntaxError as error:
            raise SourceError(error.message, hint=error.hint) from error
        name = without_password(source)
        locked = self._entry(name, plan)
        if isinstance(parsed, GitSource):
            fetched, entry = self._from_git(parsed, locked)
        elif isinstance(parsed, ArchiveSource):
            fetched, entry = self._from_archive(parsed, locked)
        else:
            hint = "write './FILE', 'git+https://…@REF' or 'https://…/ARCHIVE'"
            raise SourceError(f"{name!r} is not a valid bundle source", hint=hint)
        self.found[name] = entry
        return fetched

    def check(self, folder: Path, digest: str) -> None:
        """
        Raises:
            DriftError: The content of a folder does not have this digest.
            SourceError: The folder cannot be read.
        """
        with system_errors_as(SourceError, f"cannot read {folder}"):
            actual = content_hash(folder, whole=True)
        if actual != digest:
            raise DriftError(
                f"{folder} has changed since it was added",
                hint="see what it may do now: amplifier plugin update",
            )

    def _entry(self, name: str, plan: Path) -> LockEntry | None:
        """The lock entry of a bundle."""
        if not self._locked and not self._keep:
            return None
        file = self._lock_file or lock_path(plan, self._project)
        if not self._locked and not file.exists():
            return None
        if file not in self._locks:
            self._locks[file] = Lock.read(file).bundles
        entry = self._locks[file].get(name)
        if entry is None and self._locked:
            raise DriftError("this bundle is not in the lock", hint=lockfile.UPDATE)
        return entry

    def _from_git(self, source: GitSource, locked: LockEntry | None) -> tuple[Fetched, LockEntry]:
        whole = source._replace(subdirectory="")
        commit = locked.commit if locked is not None else None
        if locked is not None:
            lockfile.check_source(locked, "git", source)
        checkout = self._git.fetch(whole, commit=commit)
        commit = checkout.commit
        shown = source.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        pinned = f"git+{source.url}@{commit}"
        folder = Checkout(checkout.folder, f"{shown}@{commit[:12]}", pinned)
        entry = LockEntry(kind="git", source=source.shown, commit=commit)
        return Fetched(checkout.folder / source.subdirectory, folder), entry

    def _from_archive(
        self, source: ArchiveSource, locked: LockEntry | None
    ) -> tuple[Fetched, LockEntry]:
        from amplifier_app.sources.fetch.archives import ArchiveCache

        if locked is not None:
            lockfile.check_source(locked, "archive", source)
        cache = ArchiveCache(paths.cache_dir() / "archives", offline=self._offline)
        locked_hash = locked.archive if locked is not None else None
        unpacked = cache.fetch(source._replace(subdirectory=""), locked=locked_hash)
        pinned = f"{source.location}#sha256={unpacked.sha256.removeprefix('sha256:')}"
        checkout = Checkout(unpacked.folder, source.file_name, pinned)
        entry = LockEntry(kind="archive", source=source.shown, archive=unpacked.sha256)
        return Fetched(unpacked.folder / source.subdirectory, checkout), entry

    @cached_property
    def _git(self) -> GitCache:
        return GitCache(paths.cache_dir() / "git", offline=self._offline)
