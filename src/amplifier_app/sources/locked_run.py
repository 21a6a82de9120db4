"""Resolves all sources of a locked or offline run up front, or reports every problem at once.

This happens before anything is mounted and covers the modules of agents, so that nothing turns
out to be missing in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.module_sources import sourced_modules
from amplifier_app.plan.tree.entries import mounted_entries
from amplifier_app.sources.errors import DriftError, SourceError, SourceErrors
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.plan_lock import source_differences
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_app.sources.resolver import AppModuleSourceResolver

_HOW = (
    "Run once without --offline to download them, or copy the modules next to your plan: "
    "amplifier module vendor DIR"
)


async def strict_sources(
    plan: ResolvedPlan, *, locked: bool, lock: Path | None = None, offline: bool
) -> AppModuleSourceResolver:
    """Resolve every module that the plan can use here.

    Args:
        plan: The plan.
        locked: Require every module to match the lock.
        lock: The lock file; None for the plan's own.
        offline: Download nothing.

    Raises:
        ConfigError: The lock is missing, damaged, or does not match the plan.
        SourceError: Modules are unavailable, or something is missing offline; reports all of them.
    """
    file = held_to = None
    if locked:
        file = lock or lock_path_for(plan)
        held_to = Lock.read(file)
        changed = source_differences(plan, held_to)
        if changed:
            raise _drift_error(map(str, changed), file)
    resolver = resolver_for(plan, lock=held_to, offline=offline)
    modules = [(one.module, one.source) for one in sourced_modules(plan) if not one.left_out]
    failures: Sequence[SourceError] = ()
    try:
        await resolver.prefetch_modules(modules)
    except SourceError as error:
        failures = error.failures if isinstance(error, SourceErrors) else (error,)
        if file is not None and all(isinstance(one, DriftError) for one in failures):
            raise _drift_error(map(_without_hint, failures), file) from error
        if not offline:
            raise
    if offline:
        problems = [*map(_without_hint, failures), *_not_here(plan, resolver)]
        if problems:
            listed = "\n".join(problems)
            raise SourceError(f"offline, but these are missing:\n{listed}", hint=_HOW)
    return resolver


def _without_hint(error: SourceError) -> str:
    return f"{error.location}: {error.message}" if error.location else error.message


def _drift_error(differences: Iterable[str], file: Path) -> ConfigError:
    listed = "\n".join(differences)
    return ConfigError(
        f"the plan no longer matches its lock file:\n{listed}",
        hint="If the change is intended, update the lock: amplifier plan lock",
        location=Location(str(file)),
    )


def _not_here(plan: ResolvedPlan, resolver: AppModuleSourceResolver) -> list[str]:
    """What modules would download by themselves, from `missing_offline(config, cache)`.

    Only bundled and installed modules are asked: no code of the others runs before mounting.
    """
    mounted = plan.mount_plan()
    found: list[str] = []
    for _, _, entry in mounted_entries(mounted):
        try:
            source = resolver.resolve(entry["module"], entry.get("source"))
        except Exception:
            # Already reported as unavailable.
            continue
        if source.installed and source.entry_point:
            found += missing_files(entry, source.entry_point)
    return found


def missing_files(entry: dict[str, Any], entry_point: str) -> list[str]:
    """What one module would download by itself, one sentence for each item.

    Args:
        entry: Its entry in the mount plan.
        entry_point: Its entry point.
    """
    try:
        package = import_module(entry_point.partition(":")[0])
        check = getattr(package, "missing_offline", None)
        missing: Any = check(entry["config"], str(paths.cache_dir())) if callable(check) else ()
        return [f"{entry['module']}: missing {one}" for one in missing]
    except Exception:
        # Mounting reports a module that cannot be imported or whose config is invalid.
        return []
