"""Sources for a run that is held to a lock, or may fetch nothing: all or a list of what is wrong.

It is told before anything is mounted, for the modules of agents as well, which would else be
missed in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.entries import mounted_entries
from amplifier_app.plan.sourced import sourced_modules
from amplifier_app.sources.errors import DriftError, SourceError, SourceErrors
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.plan_lock import source_differences
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_app.sources.resolver import AppModuleSourceResolver

_HOW = (
    "Run it once without --offline to fetch what is missing, or bring the modules along: "
    "amplifier module vendor DIR"
)


async def strict_sources(
    plan: ResolvedPlan, *, locked: bool, lock: Path | None = None, offline: bool
) -> AppModuleSourceResolver:
    """A resolver that has every module the plan can come to use here.

    Args:
        plan: The plan.
        locked: Whether each module has to be what the lock says.
        lock: The file of the lock; None is the plan's own.
        offline: Whether nothing may be fetched.

    Raises:
        ConfigError: The lock is not there, damaged, or not that of the plan as it is now.
        SourceError: Modules cannot be had, or something is missing offline; all of it at once.
    """
    file = held_to = None
    if locked:
        file = lock or lock_path_for(plan)
        held_to = Lock.read(file)
        changed = source_differences(plan, held_to)
        if changed:
            raise _drifted(map(str, changed), file)
    resolver = resolver_for(plan, lock=held_to, offline=offline)
    modules = [(one.module, one.source) for one in sourced_modules(plan) if not one.left_out]
    failures: Sequence[SourceError] = ()
    try:
        await resolver.prefetch_modules(modules)
    except SourceError as error:
        failures = error.failures if isinstance(error, SourceErrors) else (error,)
        if file is not None and all(isinstance(one, DriftError) for one in failures):
            raise _drifted(map(_without_hint, failures), file) from error
        if not offline:
            raise
    if offline:
        problems = [*map(_without_hint, failures), *_not_here(plan, resolver)]
        if problems:
            listed = "\n".join(problems)
            raise SourceError(f"offline, and not all is on this machine:\n{listed}", hint=_HOW)
    return resolver


def _without_hint(error: SourceError) -> str:
    return f"{error.location}: {error.message}" if error.location else error.message


def _drifted(differences: Iterable[str], file: Path) -> ConfigError:
    listed = "\n".join(differences)
    return ConfigError(
        f"the plan is not what it is locked to:\n{listed}",
        hint="If that is wanted, write the lock anew: amplifier plan lock",
        location=Location(str(file)),
    )


def _not_here(plan: ResolvedPlan, resolver: AppModuleSourceResolver) -> list[str]:
    """What modules themselves would fetch: `missing_offline(config, cache)` of their packages.

    Only those that can be imported as things are: nothing of the others runs before mounting.
    """
    mounted = plan.mount_plan()
    found: list[str] = []
    for _, _, entry in mounted_entries(mounted):
        try:
            source = resolver.resolve(entry["module"], entry.get("source"))
        except Exception:
            # It is on the list already, as a module that cannot be had.
            continue
        if source.installed and source.entry_point:
            found += missing_files(entry, source.entry_point)
    return found


def missing_files(entry: dict[str, Any], entry_point: str) -> list[str]:
    """What one module would fetch itself when it is used, a sentence each.

    Args:
        entry: Its entry in the mount plan.
        entry_point: Where its package is.
    """
    try:
        package = import_module(entry_point.partition(":")[0])
        tell = getattr(package, "missing_offline", None)
        missing: Any = tell(entry["config"], str(paths.cache_dir())) if callable(tell) else ()
        return [f"{entry['module']}: missing are {one}" for one in missing]
    except Exception:
        # A module that cannot be imported or whose config is wrong is told when it is mounted.
        return []
