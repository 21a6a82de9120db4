"""Write the lock of a plan, compare a plan with its lock, and resolve the sources of a locked or offline run.

Entries that still fit are kept: a branch stays at its commit and a requirement at its version
until `amplifier module update` moves them.

The sources of a run are all resolved, or every problem is reported at once, before anything is mounted.
This covers the modules of agents, so that nothing turns out to be missing in the middle of a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.paths import is_offline
from amplifier_app.base.price_files import price_lists
from amplifier_app.base.sanitize import one_line
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.modules import (
    SourcedModule,
    read_requires,
    sourced_modules,
    written_override,
    written_value,
)
from amplifier_app.plan.requirements import PlanRequirement
from amplifier_app.plan.source_spec import FolderSource, Source, parse_source
from amplifier_app.plan.tree.entries import mounted_entries
from amplifier_app.sources.errors import DriftError, SourceError, SourceErrors
from amplifier_app.sources.fetch.staging import content_hash
from amplifier_app.sources.lockfile import (
    Lock,
    LockedPrices,
    LockEntry,
    Pins,
    lock_command,
    lock_path_for,
    needs_no_lock,
)
from amplifier_app.sources.resolved import Place, ResolvedSource
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core.module_sources import ModuleNotFoundError
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import common_length

_MAX_PIN = 120
"""Characters shown of a pinned text."""
_BEFORE = 20
"""Of these, characters before the first one that differs."""


class Wanted(NamedTuple):
    """A module that the plan's lock must contain.

    Attributes:
        module: Its id.
        hint: Its source in the plan, for the resolver.
        place: Where it comes from (`amplifier_app.sources.resolver`).
        source: The source from that place, with absolute paths; None for a module that is
            importable already.
        written: The source as written in the lock.
        requires: Requirements that the plan adds.
    """

    module: str
    hint: str | None
    place: Place
    source: str | None
    written: str | None
    requires: tuple[PlanRequirement, ...] = ()

    @property
    def parsed(self) -> Source | None:
        """The parsed source."""
        return parse_source(self.source, Path.cwd()) if self.source else None

    @property
    def folder(self) -> Path | None:
        """The folder or file of a local source."""
        parsed = self.parsed
        return parsed.path if isinstance(parsed, FolderSource) else None


class Difference(NamedTuple):
    """One difference of a module from its lock.

    Attributes:
        module: Its id; `bundle SOURCE` for a bundle.
        what: `source`, `commit`, `requirement some-lib` …; `module` for the whole entry.
        old: The old value; None if it is new.
        new: The new value; None if it was removed.
    """

    module: str
    what: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.what != "module":
            return f"{self.module}: {self.what} {_short(self.old)} → {_short(self.new)}"
        return f"{self.module}: {self.old or 'not locked'} → {self.new or 'not in the plan'}"


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    digits = value.removeprefix("sha256:")
    return digits[:12] if len(digits) in (40, 64) and digits.isalnum() else value


# -- modules to lock ---------------------------------------------------------------------


def wanted_modules(plan: ResolvedPlan) -> list[Wanted]:
    """The modules of a plan and its agents, including those skipped by conditions.

    Raises:
        ConfigError: A module has two sources.
        SourceError: A module is not found.
    """
    resolver = resolver_for(plan)
    by_id: dict[str, tuple[Wanted, SourcedModule]] = {}
    for module in sourced_modules(plan):
        try:
            current = _wanted(plan, resolver, module)
        except ModuleNotFoundError as error:
            raise SourceError(f"{module.module}: {error}", location=module.at) from error
        before, first = by_id.setdefault(module.module, (current, module))
        if before.source != current.source:
            raise ConfigError(
                f"{module.module} has two sources: {before.written or before.place} "
                f"({first.at}) and {current.written or current.place} ({module.at})",
                hint="A lock has one source for each module; use the same one in both places.",
            )
    requires = read_requires(plan)
    return [
        wanted._replace(requires=requires.get(wanted.module, ())) for wanted, _ in by_id.values()
    ]


def _wanted(plan: ResolvedPlan, resolver: AppModuleSourceResolver, module: SourcedModule) -> Wanted:
    chosen = resolver.choose(module.module, module.source)
    written = None
    if chosen.place == "plan":
        written = module.written
    elif chosen.place == "settings":
        written = written_override(plan, module.module)
    elif chosen.place == "workspace":
        written = f".amplifier/modules/{module.module}"
    elif chosen.source is not None:
        written = written_value(chosen.source)
    return Wanted(module.module, module.source, chosen.place, chosen.source, written)


# -- writing -----------------------------------------------------------------------------


async def make_lock(
    plan: ResolvedPlan, old: Lock | None = None, *, renew: Collection[str] = ()
) -> Lock:
    """Make the lock of a plan, with every module that the plan can use.

    Args:
        plan: The plan.
        old: Its current lock, whose entries are kept where they still fit.
        renew: Ids of modules whose branches and requirements to look up again.

    Raises:
        ConfigError: A module has two sources.
        SourceError: Modules are unavailable; reports all of them.
    """
    resolved = await resolve_all(plan, old, renew=renew)
    entries = {module.module: lock_entry(module, source) for module, source in resolved}
    bundles = dict(sorted(plan.merged.fetched.items()))
    lists = price_lists()
    prices = {
        module.module: LockedPrices(**lists[module.module][0].file._asdict())
        for module, source in resolved
        # One of another source has prices of its own.
        if module.module in lists and source.kind == "bundled"
    }
    return Lock(
        plan=plan.name,
        modules=dict(sorted(entries.items())),
        bundles=bundles,
        pins=None if old is None else old.pins,
        prices=prices,
    )


async def resolve_all(
    plan: ResolvedPlan, old: Lock | None, *, renew: Collection[str] = ()
) -> list[tuple[Wanted, ResolvedSource]]:
    """Resolve every module that a plan can use; see `make_lock`."""
    modules = wanted_modules(plan)
    kept = await _entries_to_keep(plan, modules, old, renew) if old is not None else {}
    locked = Lock(plan=plan.name, modules=kept)
    requires = read_requires(plan)
    resolver = resolver_for(
        plan, lock=locked, partial=True, renew=not is_offline(), requires=requires
    )
    await resolver.prefetch_modules((module.module, module.hint) for module in modules)
    return [
        (module, await resolver.async_resolve(module.module, module.hint)) for module in modules
    ]


async def _entries_to_keep(
    plan: ResolvedPlan, modules: list[Wanted], old: Lock, renew: Collection[str]
) -> dict[str, LockEntry]:
    """The lock entries that still apply."""
    resolver = resolver_for(plan, lock=old, requires=read_requires(plan))
    candidates = [
        module
        for module in modules
        if module.module not in renew
        and (entry := old.entry(module.module)) is not None
        and not any(_source_differences(module, entry))
    ]
    results = await asyncio.gather(
        *(resolver.async_resolve(candidate.module, candidate.hint) for candidate in candidates),
        return_exceptions=True,
    )
    entries: dict[str, LockEntry] = {}
    for candidate_module, result in zip(candidates, results, strict=True):
        if isinstance(result, ResolvedSource):
            entries[candidate_module.module] = lock_entry(candidate_module, result)
        elif not isinstance(result, Exception):
            raise result
    # Modules that are unavailable as locked are resolved again, which reports the failure.
    return entries


def lock_entry(module: Wanted, source: ResolvedSource) -> LockEntry:
    """The lock entry of a resolved module."""
    as_it_is = source.installed and source.version is not None
    return LockEntry(
        kind=source.kind,
        source=module.written,
        commit=source.commit,
        content=None if as_it_is else source.content_hash,
        archive=source.archive,
        distribution=source.distribution,
        version=source.version,
        requirements=dict(sorted(source.requirements.items())),
        requires=dict(sorted(source.requires.items())),
    )


# -- comparing ---------------------------------------------------------------------------


def differences(old: Lock, new: Lock) -> list[Difference]:
    """Return the changes between two locks, by module and bundle; then the price lists."""
    pairs = {name: (old.entry(name), new.entry(name)) for name in {*old.modules, *new.modules}}
    for name in {*old.bundles, *new.bundles}:
        pairs[f"bundle {name}"] = (old.bundles.get(name), new.bundles.get(name))
    changes: list[Difference] = []
    for name, (before, after) in sorted(pairs.items()):
        if before is not None and after is not None:
            changes += _entry_differences(name, before, after)
        else:
            changes.append(Difference(name, "module", _describe(before), _describe(after)))
    for name in sorted({*old.prices, *new.prices}):
        files = old.prices.get(name), new.prices.get(name)
        if files[0] != files[1]:
            changes.append(Difference(name, "prices", *map(_describe_prices, files)))
    return [*changes, *pin_differences(old.pins or {}, new.pins or {})]


def pin_differences(old: Pins, new: Pins) -> list[Difference]:
    """Return the changes of what modules bring from outside."""
    return [
        Difference(name, part, *_shorten_alike(before.get(part), after.get(part)))
        for name in sorted({*old, *new})
        if (before := old.get(name, {})) != (after := new.get(name, {}))
        for part in sorted({*before, *after})
        if before.get(part) != after.get(part)
    ]


def _shorten_alike(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """Return two texts in one line each, from shortly before the first character that differs."""
    start = 0
    if old is not None and new is not None and not old.startswith("sha256:"):
        start = max(common_length(old, new) - _BEFORE, 0)

    def shorten(text: str | None) -> str | None:
        return text and ("…" if start else "") + one_line(text[start:], _MAX_PIN)

    return shorten(old), shorten(new)


def _describe_prices(prices: LockedPrices | None) -> str | None:
    return None if prices is None else f"{prices.as_of} (sha256 {prices.sha256[:12]})"


def _describe(entry: LockEntry | None) -> str | None:
    """A short description of an entry: its source, and its commit or version."""
    if entry is None:
        return None
    exact = entry.commit or (f"{entry.distribution} {entry.version}" if entry.version else None)
    words = [entry.source or ("" if exact else entry.kind), _short(exact) if exact else ""]
    return " ".join(filter(None, words))


def _entry_differences(module: str, old: LockEntry, new: LockEntry) -> Iterator[Difference]:
    for what in ("kind", "source", "commit", "archive", "distribution", "version", "content"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield Difference(module, what, before, after)
    for name in sorted({*old.requirements, *new.requirements}):
        before, after = old.requirements.get(name), new.requirements.get(name)
        if before != after:
            yield Difference(module, f"requirement {name}", before, after)
    yield from _requires_differences(module, old.requires, new.requires)


def _requires_differences(
    module: str, old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> Iterator[Difference]:
    for requirement in sorted({*old, *new}):
        before = (old[requirement] or requirement) if requirement in old else None
        after = (new[requirement] or requirement) if requirement in new else None
        if before != after:
            yield Difference(module, f"'requires' {requirement}", before, after)


def source_differences(plan: ResolvedPlan, lock: Lock) -> list[Difference]:
    """Compare the sources of a plan with its lock, without fetching anything.

    Modules that are only in the lock do not count: the plan runs without them.

    Raises:
        ConfigError: A module has two sources.
        SourceError: A module is not found.
    """
    changes: list[Difference] = []
    for module in wanted_modules(plan):
        entry = lock.entry(module.module)
        if entry is None and needs_no_lock(module.module, module.place):
            continue
        if entry is None:
            new = module.written or module.place
            changes.append(Difference(module.module, "module", None, new))
        else:
            changes += _source_differences(module, entry)
    return changes


def _source_differences(module: Wanted, entry: LockEntry) -> Iterator[Difference]:
    """Yield the differences that need no fetching: the source as written, and a folder's files."""
    if entry.source != module.written:
        yield Difference(module.module, "source", entry.source, module.written)
        return
    asked = {
        require.written: entry.requires.get(require.written)
        for require in module.requires
        if not require.if_imported or require.written in entry.requires
    }
    # The plan does not list the package at the root of the module's own repository.
    asked |= {
        requirement: commit
        for requirement, commit in entry.requires.items()
        if commit and commit == entry.commit
    }
    yield from _requires_differences(module.module, entry.requires, asked)
    folder = module.folder
    if folder is not None and folder.exists():
        content = content_hash(folder)
        if content != entry.content:
            yield Difference(module.module, "content", entry.content, content)


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
        if not file.exists():
            hint = f"write it with: {lock_command(plan, file)}"
            raise ConfigError("the lock does not exist", hint=hint, location=Location(str(file)))
        held_to = Lock.read(file)
        changed = source_differences(plan, held_to)
        if changed:
            raise drift_error(map(str, changed), plan, file)
    resolver = resolver_for(plan, lock=held_to, offline=offline)
    modules = [
        (module.module, module.source) for module in sourced_modules(plan) if not module.left_out
    ]
    failures: Sequence[SourceError] = ()
    try:
        await resolver.prefetch_modules(modules)
    except SourceError as error:
        failures = error.failures if isinstance(error, SourceErrors) else (error,)
        if file is not None and all(isinstance(failure, DriftError) for failure in failures):
            raise drift_error(map(_without_hint, failures), plan, file) from error
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


def drift_error(
    differences: Iterable[str], plan: ResolvedPlan, file: Path | None = None
) -> ConfigError:
    """Return the error for a plan that differs from its lock; `file` is None if it is unknown."""
    listed = "\n".join(differences)
    return ConfigError(
        f"the plan no longer matches its lock file:\n{listed}",
        hint=f"If the change is intended, update the lock: {lock_command(plan, file)}",
        location=None if file is None else Location(str(file)),
    )


def _not_here(plan: ResolvedPlan, resolver: AppModuleSourceResolver) -> list[str]:
    """Return the downloads that modules would start, from `missing_offline(config, cache)`.

    Only bundled and installed modules are asked: no code of the others runs before mounting.
    """
    mounted = plan.mount_plan()
    downloads: list[str] = []
    for _, _, entry in mounted_entries(mounted):
        try:
            source = resolver.resolve(entry["module"], entry.get("source"))
        except Exception:
            # Already reported as unavailable.
            continue
        if source.installed and source.entry_point:
            downloads += missing_files(entry, source.entry_point)
    return downloads


def missing_files(entry: dict[str, Any], entry_point: str) -> list[str]:
    """Return the downloads that one module would start, one sentence for each item.

    Args:
        entry: Its entry in the mount plan.
        entry_point: Its entry point.
    """
    try:
        package = import_module(entry_point.partition(":")[0])
        check = getattr(package, "missing_offline", None)
        missing: Any = check(entry["config"], str(paths.cache_dir())) if callable(check) else ()
        return [f"{entry['module']}: missing {item}" for item in missing]
    except Exception:
        # Mounting reports a module that cannot be imported or whose config is invalid.
        return []
