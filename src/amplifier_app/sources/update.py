"""Looks for newer versions of modules on branches, tags and the package index."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Literal

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.paths import VARIABLE, is_offline
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.source_spec import GitSource, PackageSource, parse_source
from amplifier_app.plan.tree.problems import suggest
from amplifier_app.sources.errors import SourceError, results_or_raise
from amplifier_app.sources.fetch.git import GitCache
from amplifier_app.sources.lockfile import Lock
from amplifier_app.sources.plan_lock import Wanted, make_lock, wanted_modules
from amplifier_app.sources.requirements.dependencies import DependencyCache, PackageCache
from amplifier_app.sources.resolver import resolver_for
from amplifier_app.sources.stopping import run_in_thread
from amplifier_support.named_tuple import NamedTuple

State = Literal["newer", "current", "pinned"]


class Update(NamedTuple):
    """The update state of one module.

    Attributes:
        module: Its id; `bundle` for a bundle.
        source: Its source as written.
        state: `"pinned"` if the source specifies one commit or version, which never changes.
        old: The locked commit or version, or else the last used one; None if there is none.
        new: The current commit or version.
    """

    module: str
    source: str
    state: State
    old: str | None
    new: str


async def look_for_updates(
    plan: ResolvedPlan, lock: Lock | None, ids: Collection[str], cache: Path
) -> list[Update]:
    """Look for newer versions of a plan's modules, without fetching or changing anything.

    Args:
        plan: The plan.
        lock: Its lock.
        ids: The modules to check; if empty, all that can change.
        cache: The cache folder, for the versions last used.

    Raises:
        UsageError: An id is not in the plan, or its source cannot change.
        ConfigError: Amplifier is offline.
        SourceError: Repositories or the index are unreachable; reports all of them.
    """
    if is_offline():
        raise ConfigError("cannot check for updates offline", hint=f"Unset {VARIABLE}.")
    modules = {module.module: module for module in wanted_modules(plan)}
    moving = {name: candidate for name, candidate in modules.items() if _can_change(candidate)}
    for name in ids:
        _check_id(name, modules, moving)
    chosen = [candidate for name, candidate in moving.items() if not ids or name in ids]
    results = await asyncio.gather(
        *(run_in_thread(partial(_look, candidate, lock, cache)) for candidate in chosen),
        return_exceptions=True,
    )
    return results_or_raise(
        results,
        lambda number, error: SourceError(
            f"{chosen[number].module}: {error.message}", hint=error.hint
        ),
    )


def bundle_updates(plan: ResolvedPlan, lock: Lock | None) -> list[Update]:
    """The update state of a plan's bundles, which were fetched when it was loaded."""
    updates: list[Update] = []
    for source, entry in plan.merged.fetched.items():
        locked = lock.bundles.get(source) if lock is not None else None
        new = entry.commit or entry.archive or ""
        old = new if lock is None else locked and (locked.commit or locked.archive)
        parsed = parse_source(source, Path.cwd())
        pinned = isinstance(parsed, GitSource) and parsed.is_commit
        state: State = "pinned" if pinned else "current" if old == new else "newer"
        updates.append(Update("bundle", source, state, old, new))
    return updates


async def fetch_updates(
    plan: ResolvedPlan, lock: Lock | None, updates: Collection[Update]
) -> Lock | None:
    """Fetch the newer versions.

    Returns:
        The updated lock; None if there was none.

    Raises:
        SourceError: Modules are unavailable; reports all of them.
    """
    newer = {update.module for update in updates if update.state == "newer"}
    if lock is not None:
        return await make_lock(plan, lock, renew=newer)
    modules = [module for module in wanted_modules(plan) if module.module in newer]
    resolver = resolver_for(plan, renew=True)
    await resolver.prefetch_modules((module.module, module.hint) for module in modules)
    return None


def _can_change(module: Wanted) -> bool:
    """Return True if a source can have newer versions, pinned or not."""
    parsed = module.parsed
    if isinstance(parsed, PackageSource):
        return installed.list_modules(parsed.name) is None
    return isinstance(parsed, GitSource)


def _check_id(name: str, known: Collection[str], moving: Collection[str]) -> None:
    if name not in known:
        raise UsageError(f"the plan has no module {name!r}", hint=suggest(name, sorted(known)))
    if name not in moving:
        raise UsageError(
            f"{name} cannot be updated: it comes from neither a repository nor a package index",
            hint=f"Modules that can be updated: {', '.join(sorted(moving)) or 'none'}",
        )


def _look(module: Wanted, lock: Lock | None, cache: Path) -> Update:
    entry = lock.entry(module.module) if lock is not None else None
    if entry is not None and entry.source != module.written:
        entry = None
    parsed = module.parsed
    if isinstance(parsed, GitSource):
        git = GitCache(cache / "git")
        old = entry.commit if entry is not None else git.last_used(parsed)
        new = git.look_up(parsed)
        pinned = parsed.is_commit
    else:
        assert isinstance(parsed, PackageSource)
        packages = PackageCache(cache / "packages")
        old = entry.version if entry is not None else packages.last_used(parsed)
        environment = DependencyCache(cache / "dependencies").environment()
        new = packages.newest(parsed, environment)
        pinned = parsed.versions.startswith("==") and "*" not in parsed.versions
    state: State = "pinned" if pinned else "current" if old == new else "newer"
    return Update(module.module, module.written or "", state, old, new)
