"""The kernel's resolver (Module Source Protocol): where each module of a session comes from.

`fetching` turns a source into local files. The search order of modules; the first match wins:

    1  environment   AMPLIFIER_MODULE_<ID>, the id in capitals, `-` and `.` as `_`
    2  workspace     .amplifier/modules/<id> of a trusted project
    3  settings      `sources:` of the settings; project-local over project over user
    4  plan          the module's `source`
    5  bundled       a module that ships with the program
    6  installed     an entry point of an installed distribution
    7  folders       a project `amplifier-module-<id>` in a folder of AMPLIFIER_MODULES
    8  convention    an importable package `amplifier_module_<id>`

If the first match is unavailable, that is an error: falling back to the next place would
silently run a different module than the requested one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from amplifier_app.base import installed
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.paths import is_offline
from amplifier_app.plan.tree.entries import mounted_entries
from amplifier_app.sources.errors import DriftError, SourceError, results_or_raise
from amplifier_app.sources.resolved import Considered, Place, ResolvedSource
from amplifier_app.sources.stopping import run_in_thread
from amplifier_core.module_sources import ModuleNotFoundError, conventional_name, project_name
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

if TYPE_CHECKING:
    from amplifier_app.plan.documents.scopes import Override
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.plan.requirements import PlanRequirement
    from amplifier_app.sources.fetching import Fetcher
    from amplifier_app.sources.lockfile import Lock

PREFIX = "AMPLIFIER_MODULE_"


class Candidate(NamedTuple):
    """The offer of one place for a module.

    Attributes:
        place: The place.
        text: What it has, for display.
        source: The source to fetch; None for a module that is importable already.
        entry_point: Entry point of a module that is importable already.
        distribution: The distribution it is in, if any.
        version: The version of that distribution.
        at: Where it is set, for error messages.
    """

    place: Place
    text: str
    source: str | None = None
    entry_point: str | None = None
    distribution: str | None = None
    version: str | None = None
    at: Location | None = None

    @classmethod
    def of(cls, place: Place, module: installed.Installed) -> Candidate:
        """The offer of a module that is part of the environment."""
        _, entry_point, distribution, version = module
        text = f"{distribution} {version}"
        return cls(place, text, None, entry_point, distribution, version)


class Places:
    """The places of one session.

    Args:
        environ: The environment variables.
        workspace: The folder of a trusted project with one folder for each module.
        overrides: Module id → source from settings.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        workspace: Path | None,
        overrides: Mapping[str, Override] | None,
    ) -> None:
        self._environ = environ
        self._workspace = workspace
        self._overrides = overrides or {}

    def candidates(self, module_id: str, hint: str | None) -> Iterator[Candidate]:
        """Yield each place's offer for a module, in search order and computed lazily.

        Raises:
            SourceError: Its workspace folder is a link out of the workspace.
        """
        named = self._environ.get(name_variable(module_id))
        if named:
            yield Candidate("environment", named, named)
        folder = self._in_workspace(module_id)
        if folder is not None:
            yield Candidate("workspace", str(folder), str(folder))
        override = self._overrides.get(module_id)
        if override is not None:
            yield Candidate("settings", override.source, override.source, at=override.at)
        if hint is not None:
            yield Candidate("plan", hint, hint)
        own = installed.bundled_modules().get(module_id)
        if own is not None:
            yield Candidate.of("bundled", own)
        for module in installed.modules_on_path(module_id):
            yield Candidate.of("installed", module)
        project = self._in_folders(module_id)
        if project is not None:
            yield Candidate("folders", str(project), str(project))
        target = installed.by_convention(module_id)
        if target is not None:
            yield Candidate("convention", target.partition(":")[0], entry_point=target)

    def considered(self, module_id: str, hint: str | None) -> tuple[Considered, ...]:
        """Every place with what it has for a module."""
        by_place: dict[Place, list[Candidate]] = {}
        for candidate in self.candidates(module_id, hint):
            by_place.setdefault(candidate.place, []).append(candidate)
        first = next(iter(by_place), None)
        rows: list[Considered] = []
        for place, nothing in self._nothing(module_id).items():
            for index, candidate in enumerate(by_place.get(place, ())):
                chosen = place == first and index == 0
                reason = "first match" if chosen else f"{first} takes precedence"
                if place == first and not chosen:
                    reason = "another distribution precedes it on the path"
                rows.append(Considered(place, candidate.text, reason, chosen))
            if place not in by_place:
                rows.append(Considered(place, None, nothing))
        return tuple(rows)

    def _nothing(self, module_id: str) -> dict[Place, str]:
        """Every place in order, with the reason to show if it has nothing."""
        workspace = f"no folder {self._workspace / module_id}" if self._workspace else None
        return {
            "environment": f"{name_variable(module_id)} is not set",
            "workspace": workspace or "no trusted project",
            "settings": "no source in settings",
            "plan": "no source in the plan",
            "bundled": "not bundled",
            "installed": "not in any installed distribution",
            "folders": self._nothing_in_folders(module_id),
            "convention": f"no package {conventional_name(module_id)}",
        }

    def _in_folders(self, module_id: str) -> Path | None:
        if not self._environ.get(installed.FOLDERS):
            return None
        return installed.modules_in_folders(self._environ).get(module_id)

    def _nothing_in_folders(self, module_id: str) -> str:
        listed = self._environ.get(installed.FOLDERS, "")
        if not listed:
            return f"{installed.FOLDERS} is not set"
        relative = [
            folder for folder in listed.split(os.pathsep) if folder and not os.path.isabs(folder)
        ]
        ignored = f"; ignored, as it is relative: {relative[0]}" if relative else ""
        return f"no {project_name(module_id)} in {installed.FOLDERS}{ignored}"

    def _in_workspace(self, module_id: str) -> Path | None:
        if self._workspace is None:
            return None
        folder = self._workspace / module_id
        if not folder.is_dir():
            return None
        if not folder.resolve().is_relative_to(self._workspace.resolve()):
            # Trust covers what is in the project, not the target of a link out of it.
            raise SourceError(
                f"{folder} is a link out of the project",
                hint="Set its target as the module's source instead",
            )
        return folder


def name_variable(module_id: str) -> str:
    """The environment variable that sets a module's source."""
    return PREFIX + module_id.upper().replace("-", "_").replace(".", "_")


_Asked: TypeAlias = tuple[str, str | None]


class AppModuleSourceResolver:
    """Resolves modules for one session and caches the results for its lifetime.

    Args:
        folder: Base of relative paths; paths in a plan are absolute already.
        cache: The cache folder; `paths.cache_dir()` by default.
        environ: The variables, for `AMPLIFIER_MODULE_<ID>`; by default those of this process.
        workspace: The `modules` folder of a trusted project.
        overrides: Module id → source from settings.
        origin: Returns where the plan has a module with this source, for messages.
        lock: The lock that every module must match.
        partial: Resolve modules that are not in the lock as if there were no lock.
        offline: Use only the cache.
        renew: Look for newer versions of packages.
        requires: Returns module id → requirements that the plan adds.
        modules: Returns id and source of all modules that this process mounts.

    Attributes:
        offline: Whether only the cache is used.
        lock: The lock that every module must match; None without one.
    """

    def __init__(
        self,
        folder: Path | None = None,
        cache: Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        workspace: Path | None = None,
        overrides: Mapping[str, Override] | None = None,
        origin: Callable[[str, str | None], Location | None] = lambda module_id, source: None,
        lock: Lock | None = None,
        partial: bool = False,
        offline: bool = False,
        renew: bool = False,
        requires: Callable[[], Mapping[str, Sequence[PlanRequirement]]] = dict,
        modules: Callable[[], Iterable[tuple[str, str | None]]] = tuple,
    ) -> None:
        self._get_requires = requires
        self._get_modules = modules
        environ = os.environ if environ is None else environ
        self._places = Places(environ, workspace, overrides)
        self._origin = origin
        self.offline = offline
        self.lock = lock
        self._partial = partial
        self._fetching = (folder, cache)
        self._renew = renew
        self._resolved: dict[_Asked, ResolvedSource] = {}

    def resolved_for(self, mount_plan: dict[str, Any]) -> dict[str, ResolvedSource]:
        """The modules of a plan that were resolved, by id; other plans may have other sources for them."""
        asked = ((module_id, source or None) for module_id, source in _modules(mount_plan))
        return {key[0]: self._resolved[key] for key in asked if key in self._resolved}

    def resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ResolvedSource:
        """Resolve the source of a module, fetching it if necessary.

        Args:
            module_id: The module's id in the plan.
            source_hint: The module's `source` in the plan.
            profile_hint: The same under its older name.

        Raises:
            ModuleNotFoundError: No place has a module with this id.
            SourceError: The source is unavailable; the error has where it is set.
        """
        hint = _hint(module_id, source_hint, profile_hint)
        known = self._resolved.get((module_id, hint))
        if known is None:
            known = self._resolve(module_id, hint, self.choose(module_id, hint))
            self._unify_versions({(module_id, hint): known})
            self._resolved[module_id, hint] = known
        return known

    async def async_resolve(
        self, module_id: str, source_hint: Any = None, profile_hint: Any = None
    ) -> ResolvedSource:
        """`resolve` without blocking the event loop; cancelling it cancels the fetch."""
        hint = _hint(module_id, source_hint, profile_hint)
        source = await self._async_resolve(module_id, hint)
        await self._async_unify_versions({(module_id, hint): source})
        return source

    async def prefetch(self, mount_plan: dict[str, Any]) -> None:
        """Resolve every module of a mount plan concurrently and report all failures together.

        Raises:
            SourceError: One or more modules are unavailable.
        """
        await self.prefetch_modules(_modules(mount_plan))

    async def prefetch_modules(self, modules: Iterable[tuple[str, str | None]]) -> None:
        """`prefetch` for modules given by id and source.

        Raises:
            SourceError: One or more of them are unavailable.
        """
        requests = list(dict.fromkeys(modules))
        if self._resolved.keys() >= {*requests}:
            return  # For another row of a batch.
        results = await asyncio.gather(
            *(self._async_resolve(module_id, source) for module_id, source in requests),
            return_exceptions=True,
        )
        sources = results_or_raise(
            results, lambda number, error: self._of_module(*requests[number], error)
        )
        await self._async_unify_versions(dict(zip(requests, sources, strict=True)))

    async def _async_resolve(self, module_id: str, hint: str | None) -> ResolvedSource:
        known = self._resolved.get((module_id, hint))
        if known is not None:
            return known
        chosen = self.choose(module_id, hint)
        if chosen.source is None and module_id not in self._requires:
            return self._resolve(module_id, hint, chosen)
        return await run_in_thread(lambda: self._resolve(module_id, hint, chosen))

    async def _async_unify_versions(self, resolved: Mapping[_Asked, ResolvedSource]) -> None:
        if any(
            source.import_paths and key not in self._resolved for key, source in resolved.items()
        ):
            await run_in_thread(lambda: self._unify_versions(resolved))
        self._resolved.update(resolved)

    def _unify_versions(self, resolved: Mapping[_Asked, ResolvedSource]) -> None:
        """Find a shared version of each package that modules have in different versions."""
        if any(source.import_paths for source in resolved.values()):
            from amplifier_app.sources.shared_versions import agree

            named = {self._named(*key): source for key, source in resolved.items()}
            locked = self.lock is not None and not self._partial
            agree(named, self._fetcher.dependencies, locked=locked)

    def _named(self, module_id: str, hint: str | None) -> str:
        at = self._origin(module_id, hint)
        return f"{module_id} ({at})" if at is not None else module_id

    def _of_module(self, module_id: str, hint: str | None, failure: SourceError) -> SourceError:
        """The failure with the module's name and the location to fix."""
        location = failure.location or self._origin(module_id, hint)
        return type(failure)(
            f"{module_id}: {failure.message}", hint=failure.hint, location=location
        )

    @cached_property
    def _fetcher(self) -> Fetcher:
        # Imported here because a session of bundled modules needs neither git nor uv.
        from amplifier_app.sources.fetching import Fetcher

        return Fetcher(
            *self._fetching, offline=self.offline, renew=self._renew, mounted=self._mounted
        )

    @cached_property
    def _requires(self) -> Mapping[str, Sequence[PlanRequirement]]:
        return self._get_requires()

    def _mounted(self) -> dict[str, str]:
        """Module id → distribution, for modules from the environment."""
        distributions: dict[str, str] = {}
        for module_id, hint in self._get_modules():
            chosen = next(self._places.candidates(module_id, hint), None)
            if chosen is not None and chosen.source is None and chosen.distribution:
                distributions[module_id] = chosen.distribution
        return distributions

    def choose(self, module_id: str, hint: str | None) -> Candidate:
        """Choose where a module comes from, without fetching anything.

        Raises:
            ModuleNotFoundError: No place has the module.
            SourceError: Its workspace folder is a link out of the workspace.
        """
        chosen = next(self._places.candidates(module_id, hint), None)
        if chosen is None:
            raise ModuleNotFoundError(_not_found(module_id))
        if chosen.source is not None or module_id in self._requires:
            _ = self._fetcher  # created here so that all fetching threads share it
        return chosen

    def considered(self, module_id: str, hint: str | None) -> tuple[Considered, ...]:
        """Every place in the search order with what it has, without fetching anything.

        Raises:
            SourceError: Its workspace folder is a link out of the workspace.
        """
        return self._places.considered(module_id, hint)

    def _resolve(self, module_id: str, hint: str | None, chosen: Candidate) -> ResolvedSource:
        try:
            source = self._resolve_candidate(module_id, chosen)
        except SourceError as error:
            raise _with_location(error, module_id, chosen) from error
        source.place = chosen.place
        source.search = lambda: self._places.considered(module_id, hint)
        return source

    def _resolve_candidate(self, module_id: str, chosen: Candidate) -> ResolvedSource:
        locked = None
        if self.lock is not None:
            from amplifier_app.sources import lockfile

            locked = self.lock.entry(module_id)
            exempt = self._partial or lockfile.needs_no_lock(module_id, chosen.place)
            if locked is None and not exempt:
                raise DriftError("this module is not in the lock", hint=lockfile.UPDATE)
        requires = self._requires.get(module_id, ())
        if chosen.source is not None:
            return self._fetcher.fetch(module_id, chosen.source, requires=requires, locked=locked)
        source = ResolvedSource(
            "bundled" if chosen.place == "bundled" else "installed",
            chosen.text,
            entry_point=chosen.entry_point,
            distribution=chosen.distribution,
            version=chosen.version,
        )
        if any(not require.if_imported for require in requires):
            self._fetcher.equip(module_id, source, requires, locked=locked)
        if locked is not None:
            from amplifier_app.sources import lockfile

            lockfile.check_found(locked, source)
        return source


def _with_location(error: SourceError, module_id: str, chosen: Candidate) -> SourceError:
    """The error with where the source is set, if that is not the plan."""
    if chosen.place == "environment":
        message = f"{name_variable(module_id)}: {error.message}"
        return type(error)(message, hint=error.hint)
    return type(error)(error.message, hint=error.hint, location=error.location or chosen.at)


def _hint(module_id: str, source_hint: Any, profile_hint: Any) -> str | None:
    hint = source_hint if source_hint is not None else profile_hint
    if hint is None or isinstance(hint, str):
        return hint or None
    raise SourceError(f"the source of {module_id!r} must be a string, not {type(hint).__name__}")


def _modules(mount_plan: dict[str, Any]) -> Iterable[tuple[str, str | None]]:
    for _, _, entry in mounted_entries(mount_plan):
        if isinstance(entry, str):
            yield entry, None
        else:
            yield entry["module"], entry.get("source")


def _not_found(module_id: str) -> str:
    known = sorted(installed.known_ids())
    folders = f" nor in {installed.FOLDERS}" if os.environ.get(installed.FOLDERS) else ""
    advice = did_you_mean(module_id, known) or f"available: {', '.join(known)}"
    return (
        f"unknown module {module_id!r}: it is neither bundled nor installed{folders}, "
        f"and the plan sets no 'source' for it; {advice}"
    )


def resolver_for(
    plan: ResolvedPlan,
    *,
    lock: Lock | None = None,
    partial: bool = False,
    offline: bool | None = None,
    renew: bool = False,
    requires: Mapping[str, Sequence[PlanRequirement]] | None = None,
) -> AppModuleSourceResolver:
    """A resolver that uses the plan's project and settings, and reports lines in their files.

    Args:
        plan: The plan whose modules to resolve; its project is trusted.
        lock: The lock that every module must match.
        partial: Resolve modules that are not in the lock as if there were no lock.
        offline: Use only the cache. Defaults to AMPLIFIER_OFFLINE.
        renew: Look for newer versions of packages.
        requires: Module id → added requirements; by default those that the plan adds for the
            modules mounted here.
    """
    return AppModuleSourceResolver(
        environ=plan.environ,
        workspace=plan.project / "modules" if plan.project is not None else None,
        overrides=plan.sources,
        origin=lambda module_id, source: _origin(plan, module_id, source),
        lock=lock,
        partial=partial,
        offline=is_offline() if offline is None else offline,
        renew=renew,
        requires=lambda: plan.requires if requires is None else requires,
        modules=lambda: _mounted(plan),
    )


def _mounted(plan: ResolvedPlan) -> list[tuple[str, str | None]]:
    """The modules of a plan and its agents, which share one process."""
    from amplifier_app.plan.modules import agent_modules, planned_modules

    return [
        (module.module, module.source) for module in (*planned_modules(plan), *agent_modules(plan))
    ]


def _origin(plan: ResolvedPlan, module_id: str, source: str | None) -> Location | None:
    """Return the location of a module's source in the plan, or of the module's name."""
    # Imported here because only errors need it.
    from amplifier_app.plan.modules import sourced_modules

    try:
        modules = sourced_modules(plan)
    except ConfigError:
        # Another source in the plan is invalid; the caller that loaded the plan reports it.
        return None
    return next((m.at for m in modules if (m.module, m.source) == (module_id, source)), None)
