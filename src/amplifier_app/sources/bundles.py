"""Bundles that are fetched: a source → files on this machine, as the sources of modules are.

A repository or an archive is fetched whole, as a bundle in one of its folders may name files of the
others. What was fetched is remembered, to be locked with the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from amplifier_app.base import paths
from amplifier_app.base.offline import is_offline
from amplifier_app.plan.bundles import Fetched
from amplifier_app.plan.namespaces import Checkout
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    GitSource,
    SourceSyntaxError,
    without_password,
)
from amplifier_app.plan.source_syntax import parse_source
from amplifier_app.sources import drift
from amplifier_app.sources.errors import DriftError, SourceError
from amplifier_app.sources.git import GitCache
from amplifier_app.sources.lockfile import Lock, LockEntry, lock_path


class Fetcher:
    """Fetches the bundles of one plan.

    Args:
        offline: Whether nothing but the cache may be used; by default what AMPLIFIER_OFFLINE says.
        locked: Whether each bundle has to be what the lock says.
        keep: Whether a lock, if there is one, counts for the bundles that it knows.
        lock: The file of the lock; None is the plan's own.
        project: The folder of the project whose profiles have their locks there.

    Attributes:
        found: Source, without a password, → what it is exactly.
    """

    def __init__(
        self,
        *,
        offline: bool | None = None,
        locked: bool = False,
        keep: bool = False,
        lock: Path | None = None,
        project: Path | None = None,
    ) -> None:
        self.found: dict[str, LockEntry] = {}
        self._offline = is_offline() if offline is None else offline
        self._locked = locked
        self._keep = keep
        self._lock_file = lock
        self._project = project
        self._commits: dict[tuple[str, str | None], str] = {}
        self._locks: dict[Path, Mapping[str, LockEntry]] = {}

    def fetch(self, source: str, plan: Path) -> Fetched:
        """A bundle; see `amplifier_app.plan.bundles.BundleFetcher`.

        Raises:
            SourceError: It is unavailable, not allowed, or not what the lock says.
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
            raise SourceError(f"{name!r} is not the source of a bundle", hint=hint)
        self.found[name] = entry
        return fetched

    def _entry(self, name: str, plan: Path) -> LockEntry | None:
        """What the lock says of a bundle."""
        if not self._locked and not self._keep:
            return None
        file = self._lock_file or lock_path(plan, self._project)
        if not self._locked and not file.exists():
            return None
        if file not in self._locks:
            self._locks[file] = Lock.read(file).bundles
        entry = self._locks[file].get(name)
        if entry is None and self._locked:
            raise DriftError("the lock does not know this bundle", hint=drift.UPDATE)
        return entry

    def _from_git(self, source: GitSource, locked: LockEntry | None) -> tuple[Fetched, LockEntry]:
        whole = source._replace(subdirectory="")
        commit = locked.commit if locked is not None else None
        if locked is not None:
            drift.check_source(locked, "git", source)
        key = (source.url, source.ref)
        if commit is None:
            if key not in self._commits:
                self._commits[key] = self._git.look_up(whole)
            commit = self._commits[key]
        checkout = self._git.fetch(whole, commit=commit)
        shown = source.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        pinned = f"git+{source.url}@{commit}"
        found = Checkout(checkout.folder, f"{shown}@{commit[:12]}", pinned)
        entry = LockEntry(kind="git", source=source.shown, commit=commit)
        return Fetched(checkout.folder / source.subdirectory, found), entry

    def _from_archive(
        self, source: ArchiveSource, locked: LockEntry | None
    ) -> tuple[Fetched, LockEntry]:
        from amplifier_app.sources.archives import ArchiveCache

        wanted = None
        if locked is not None:
            drift.check_source(locked, "archive", source)
            wanted = (locked.archive or "").removeprefix("sha256:") or None
        cache = ArchiveCache(paths.cache_dir() / "archives", offline=self._offline)
        unpacked = cache.fetch(source._replace(subdirectory=""), sha256=wanted)
        pinned = f"{source.location}#sha256={unpacked.sha256.removeprefix('sha256:')}"
        found = Checkout(unpacked.folder, source.file_name, pinned)
        entry = LockEntry(kind="archive", source=source.shown, archive=unpacked.sha256)
        return Fetched(unpacked.folder / source.subdirectory, found), entry

    @cached_property
    def _git(self) -> GitCache:
        return GitCache(paths.cache_dir() / "git", offline=self._offline)
