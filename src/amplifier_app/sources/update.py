"""Newer versions of modules: what branches, tags and the package index have by now."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.offline import VARIABLE, is_offline
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.problems import suggest
from amplifier_app.plan.source_spec import GitSource, PackageSource
from amplifier_app.plan.source_syntax import parse_source
from amplifier_app.sources.dependencies import DependencyCache
from amplifier_app.sources.errors import SourceError, SourceErrors
from amplifier_app.sources.git import GitCache
from amplifier_app.sources.lockfile import Lock
from amplifier_app.sources.packages import PackageCache
from amplifier_app.sources.plan_lock import Wanted, make_lock, wanted_modules
from amplifier_app.sources.plan_resolver import resolver_for

State = Literal["newer", "current", "pinned"]


class Update(NamedTuple):
    """What there is for one module.

    Attributes:
        module: Its id; `bundle` for a bundle.
        source: Its source as it is written.
        state: `"pinned"` if the source names one commit, which never changes.
        old: The commit or version it is locked to, else the one that was used last; None if
            none was.
        new: The commit or version that there is now.
    """

    module: str
    source: str
    state: State
    old: str | None
    new: str


class Caches(NamedTuple):
    """Where what was fetched is kept."""

    git: GitCache
    packages: PackageCache
    dependencies: DependencyCache

    @classmethod
    def below(cls, root: Path) -> Caches:
        """The caches in the folder of all of them."""
        return cls(
            GitCache(root / "git"),
            PackageCache(root / "packages"),
            DependencyCache(root / "dependencies"),
        )


async def look_for_updates(
    plan: ResolvedPlan, lock: Lock | None, ids: Collection[str], caches: Caches
) -> list[Update]:
    """What there is for the modules of a plan; nothing is fetched, and nothing changes.

    Args:
        plan: The plan.
        lock: Its lock.
        ids: The modules to look at; all that can change if it is empty.
        caches: What was used last.

    Raises:
        UsageError: An id is not in the plan, or is that of a module that cannot change.
        ConfigError: The network may not be used.
        SourceError: Repositories or the index cannot be asked; all of them at once.
    """
    if is_offline():
        raise ConfigError("newer versions cannot be looked for offline", hint=f"Unset {VARIABLE}.")
    wanted = {one.module: one for one in wanted_modules(plan)}
    moving = {name: one for name, one in wanted.items() if _can_change(one)}
    for name in ids:
        _check_id(name, wanted, moving)
    chosen = [one for name, one in moving.items() if not ids or name in ids]
    stop = threading.Event()
    try:
        results = await asyncio.gather(
            *(asyncio.to_thread(_look, one, lock, caches, stop) for one in chosen),
            return_exceptions=True,
        )
    except asyncio.CancelledError:
        stop.set()
        raise
    return _or_failures(chosen, results)


def bundle_updates(plan: ResolvedPlan, lock: Lock | None) -> list[Update]:
    """What there is for the bundles of a plan, which were fetched when it was loaded."""
    found: list[Update] = []
    for source, entry in plan.merged.fetched.items():
        locked = lock.bundles.get(source) if lock is not None else None
        new = entry.commit or entry.archive or ""
        old = new if lock is None else locked and (locked.commit or locked.archive)
        parsed = parse_source(source, Path.cwd())
        pinned = isinstance(parsed, GitSource) and parsed.is_commit
        state: State = "pinned" if pinned else "current" if old == new else "newer"
        found.append(Update("bundle", source, state, old, new))
    return found


async def fetch_updates(
    plan: ResolvedPlan, lock: Lock | None, updates: Collection[Update]
) -> Lock | None:
    """Fetch what is newer.

    Returns:
        The lock with it; None if there was none.

    Raises:
        SourceError: Something cannot be had; all of it at once.
    """
    newer = {one.module for one in updates if one.state == "newer"}
    if lock is not None:
        return await make_lock(plan, lock, renew=newer)
    modules = [one for one in wanted_modules(plan) if one.module in newer]
    resolver = resolver_for(plan, renew=True)
    await resolver.prefetch_modules((one.module, one.hint) for one in modules)
    return None


def _can_change(wanted: Wanted) -> bool:
    """Whether a source may mean something else tomorrow, or would if it were not pinned."""
    parsed = wanted.parsed
    if isinstance(parsed, PackageSource):
        return installed.installed_in(parsed.name) is None
    return isinstance(parsed, GitSource)


def _check_id(name: str, wanted: Collection[str], moving: Collection[str]) -> None:
    if name not in wanted:
        raise UsageError(f"the plan has no module {name!r}", hint=suggest(name, sorted(wanted)))
    if name not in moving:
        raise UsageError(
            f"{name} comes from no repository and no index, so there is nothing to update",
            hint=f"There is for: {', '.join(sorted(moving)) or 'none'}",
        )


def _look(wanted: Wanted, lock: Lock | None, caches: Caches, stop: threading.Event) -> Update:
    entry = lock.entry(wanted.module) if lock is not None else None
    if entry is not None and entry.source != wanted.written:
        entry = None
    parsed = wanted.parsed
    if isinstance(parsed, GitSource):
        old = entry.commit if entry is not None else caches.git.last_used(parsed)
        new = caches.git.look_up(parsed, stop=stop)
        pinned = parsed.is_commit
    else:
        assert isinstance(parsed, PackageSource)
        old = entry.version if entry is not None else caches.packages.last_used(parsed)
        environment = caches.dependencies.environment()
        new = caches.packages.newest(parsed, environment, stop=stop)
        pinned = parsed.versions.startswith("==") and "*" not in parsed.versions
    state: State = "pinned" if pinned else "current" if old == new else "newer"
    return Update(wanted.module, wanted.written or "", state, old, new)


def _or_failures(chosen: list[Wanted], results: list[Update | BaseException]) -> list[Update]:
    found: list[Update] = []
    failures: list[SourceError] = []
    for one, result in zip(chosen, results, strict=True):
        if isinstance(result, Update):
            found.append(result)
        elif isinstance(result, SourceError):
            failures.append(SourceError(f"{one.module}: {result.message}", hint=result.hint))
        else:
            raise result
    if failures:
        raise SourceErrors(failures) if len(failures) > 1 else failures[0]
    return found
