"""Fetch the module of a source so that it can be imported.

Published bundles keep code that their modules share in a package at the root of the repository, which the
modules do not require, because other programs install it with the bundle. Such a package is fetched with
the modules that import it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base import installed, paths
from amplifier_app.base.errors import Location
from amplifier_app.base.installed import normalised
from amplifier_app.plan.requirements import PlanRequirement
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    GitSource,
    PackageSource,
    Source,
    SourceSyntaxError,
    check_requirement,
    parse_source,
    without_password,
)
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements.layout import (
    Addition,
    Layout,
    find_layout,
    read_project,
    requires_nothing,
)
from amplifier_app.sources.requirements.names import requirement_name
from amplifier_app.sources.resolved import Kind, ResolvedSource

if TYPE_CHECKING:
    from amplifier_app.sources.fetch.git import Checkout, GitCache
    from amplifier_app.sources.lockfile import LockEntry
    from amplifier_app.sources.requirements.dependencies import DependencyCache

_MAX_FILES = 500
_MAX_BYTES = 1 << 20


def _package_of_repository(
    source: GitSource, checkout: Checkout, layout: Layout
) -> PlanRequirement | None:
    """Return the requirement of the package at the root, at the same commit; None if it is not imported.

    Args:
        source: The source of the module.
        checkout: The repository.
        layout: How to import the module.

    Raises:
        SourceError: The `pyproject.toml` at the root is invalid.
    """
    file = checkout.root / "pyproject.toml"
    if checkout.folder == checkout.root or not file.is_file():
        return None
    name = read_project(file).get("name")
    if not isinstance(name, str) or normalised(name) in map(requirement_name, layout.dependencies):
        return None
    # The checkout has only the files at the root and the module's folder.
    if not _imports(layout.package, normalised(name).replace("-", "_")):
        return None

    text = f"{name} @ git+{source.url}@{checkout.commit}"
    try:
        check_requirement(text)
    except SourceSyntaxError:  # A name that cannot be required, such as one of Amplifier's own.
        return None
    return PlanRequirement(text, without_password(text), Location(source.shown))


def _without_unused(requires: Sequence[PlanRequirement], layout: Layout) -> list[PlanRequirement]:
    """Leave out packages of bundles that a module does not import, or that it requires itself."""
    others = {requirement_name(require.text) for require in requires if not require.if_imported}
    others |= set(map(requirement_name, layout.dependencies))
    return [
        require
        for require in requires
        if not require.if_imported
        or (
            (name := requirement_name(require.text)) not in others
            and _imports(layout.package, name.replace("-", "_"))
        )
    ]


def _imports(module: Path, package: str) -> bool:
    pattern = re.compile(rf"^\s*(?:from|import)\s+{package}\b", re.MULTILINE)
    return any(pattern.search(text) for text in _texts(module))


def _texts(module: Path) -> Iterator[str]:
    files = module.rglob("*.py") if module.is_dir() else [module]
    for file in islice(files, _MAX_FILES):
        if file.is_file() and file.stat().st_size <= _MAX_BYTES:
            yield file.read_text(encoding="utf-8", errors="replace")


_KINDS: dict[type[Any], Kind] = {
    FolderSource: "folder",
    GitSource: "git",
    ArchiveSource: "archive",
    PackageSource: "package",
}


class Fetcher:
    """Fetches sources for one session.

    Args:
        folder: Base of relative paths; the working directory by default.
        cache: The cache folder; `paths.cache_dir()` by default.
        offline: Use only the cache.
        renew: Look for newer versions of packages.
        mounted: Returns module id → distribution, for modules this process uses from the
            environment.
    """

    def __init__(
        self,
        folder: Path | None = None,
        cache: Path | None = None,
        *,
        offline: bool = False,
        renew: bool = False,
        mounted: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._mounted = mounted
        self._folder = folder
        self._cache = cache
        self._offline = offline
        self._renew = renew
        self._lock = threading.Lock()
        self._repositories: dict[str, threading.Lock] = {}

    def fetch(
        self,
        module_id: str,
        text: str,
        *,
        requires: Sequence[PlanRequirement] = (),
        locked: LockEntry | None = None,
    ) -> ResolvedSource:
        """Fetch the module of a source and install its requirements.

        Args:
            module_id: The module's id in the plan.
            text: The source.
            requires: Requirements that the plan adds.
            locked: The lock entry it must match.

        Raises:
            SourceError: The source is unavailable, or differs from its lock entry.
            Stopped: The caller was cancelled.
        """
        try:
            source = parse_source(text, self._folder or Path.cwd())
        except SourceSyntaxError as error:
            raise SourceError(error.message, hint=error.hint) from error
        if locked is None:
            return self._fetch(module_id, source, requires, locked)
        from amplifier_app.sources import lockfile

        lockfile.check_source(locked, _KINDS[type(source)], source)
        resolved_source = self._fetch(module_id, source, requires, locked)
        lockfile.check_found(locked, resolved_source)
        return resolved_source

    def equip(
        self,
        module_id: str,
        source: ResolvedSource,
        requires: Sequence[PlanRequirement],
        *,
        locked: LockEntry | None = None,
    ) -> None:
        """Install the requirements that the plan adds to a module of the environment.

        Raises:
            SourceError: They cannot be installed.
            Stopped: The caller was cancelled.
        """
        from amplifier_app.sources.requirements.fixed_versions import (
            MODULE_PACKAGES,
            read_requirements,
        )

        # What a bundle's repository offers is for modules that have to be fetched.
        requires = [require for require in requires if not require.if_imported]
        own = read_requirements(source.distribution) if source.distribution else []
        if source.kind == "bundled":
            packages = MODULE_PACKAGES.get(module_id, ())
            own = [text for text in own if requirement_name(text) in packages]
        layout = Layout(
            Path(),
            source.entry_point,
            Path(),
            dependencies=tuple(own),
            module_id=module_id,
            installed=True,
            added=self.additions(requires, locked),
        )
        pins = locked.requirements if locked is not None else {}
        folder = self.dependencies.folder_for(layout, pins=pins)
        source.layout = layout
        source.import_paths = () if folder is None else (folder,)

    def additions(
        self, requires: Sequence[PlanRequirement], locked: LockEntry | None = None
    ) -> tuple[Addition, ...]:
        """Return requirements that a plan adds to a module, ready to install."""

        def addition(requirement: PlanRequirement) -> Addition:
            commit = locked.requires.get(requirement.written) if locked is not None else None
            return Addition(requirement, lambda source: self._checkout(source, commit))

        return tuple(map(addition, requires))

    @cached_property
    def dependencies(self) -> DependencyCache:
        """The cache of installed requirements."""
        from amplifier_app.sources.requirements.dependencies import DependencyCache

        home = self._home / "dependencies"
        return DependencyCache(home, offline=self._offline, mounted=self._mounted)

    @cached_property
    def _git(self) -> GitCache:
        from amplifier_app.sources.fetch.git import GitCache

        return GitCache(self._home / "git", offline=self._offline)

    @property
    def _home(self) -> Path:
        return self._cache or paths.cache_dir()

    def _fetch(
        self,
        module_id: str,
        source: Source,
        requires: Sequence[PlanRequirement],
        locked: LockEntry | None,
    ) -> ResolvedSource:
        checkout: Checkout | None = None
        facts: dict[str, Any]
        if isinstance(source, FolderSource):
            root, facts = source.path, {"text": source.text}
        elif isinstance(source, GitSource):
            commit = locked.commit if locked is not None else None
            checkout = self._checkout(source, commit)
            root, facts = checkout.folder, {"text": source.shown, "commit": checkout.commit}
        elif isinstance(source, ArchiveSource):
            root, facts = self._from_archive(source, locked)
        else:
            present = _from_environment(module_id, source)
            if present is not None:
                if any(not require.if_imported for require in requires):
                    self.equip(module_id, present, requires, locked=locked)
                return present
            root, facts = self._from_index(source, locked)
        extras = source.extras if isinstance(source, PackageSource) else ()
        layout = find_layout(root, module_id, extras=extras)
        requires = _without_unused(requires, layout)
        if isinstance(source, GitSource) and checkout is not None:
            shared = _package_of_repository(source, checkout, layout)
            names = {requirement_name(require.text) for require in requires}
            if shared is not None and requirement_name(shared.text) not in names:
                requires = [*requires, shared]
        layout = layout._replace(added=self.additions(requires, locked))
        pins = locked.requirements if locked is not None else {}
        required = None
        if not requires_nothing(layout, root):
            required = self.dependencies.folder_for(layout, root=root, pins=pins)
        distribution, version = layout.distribution or (None, None)
        return ResolvedSource(
            _KINDS[type(source)],
            folder=layout.folder,
            root=root,
            entry_point=layout.entry_point,
            import_paths=() if required is None else (required,),
            distribution=distribution,
            version=version,
            layout=layout,
            **facts,
        )

    # -- kinds of sources ------------------------------------------------------------

    def _checkout(self, source: GitSource, commit: str | None) -> Checkout:
        """Check out a repository.

        Args:
            source: The repository.
            commit: The locked commit.
        """
        with self._lock:
            git = self._git
            one_at_a_time = self._repositories.setdefault(source.url, threading.Lock())
        # Modules of one repository share the look-up and the fetch.
        with one_at_a_time:
            return git.fetch(source, commit=commit)

    def _from_archive(
        self, source: ArchiveSource, locked: LockEntry | None
    ) -> tuple[Path, dict[str, Any]]:
        from amplifier_app.sources.fetch.archives import ArchiveCache

        cache = ArchiveCache(self._home / "archives", offline=self._offline)
        unpacked = cache.fetch(source, locked=locked.archive if locked is not None else None)
        return unpacked.folder, {"text": source.shown, "archive": unpacked.sha256}

    def _from_index(
        self, source: PackageSource, locked: LockEntry | None
    ) -> tuple[Path, dict[str, Any]]:
        from amplifier_app.sources.requirements.dependencies import (
            PackageCache,
            refuse_without_versions,
        )

        refuse_without_versions(source)
        package = PackageCache(self._home / "packages", offline=self._offline).fetch(
            source,
            self.dependencies.versions_in_use(),
            version=locked.version if locked is not None else None,
            renew=self._renew,
        )
        return package.folder, {"text": f"{source.name} {package.version}"}


def _from_environment(module_id: str, source: PackageSource) -> ResolvedSource | None:
    """The module of an installed package; None if the package is not installed."""
    points = installed.list_modules(source.name)
    if points is None:
        name = source.name.replace("-", "_")
        if not source.versions and name.isidentifier() and find_spec(name) is not None:
            return ResolvedSource("package", name, entry_point=f"{name}:mount")
        return None
    from importlib import metadata

    from packaging.specifiers import SpecifierSet

    version = metadata.version(source.name)
    if source.versions and not SpecifierSet(source.versions).contains(version, prereleases=True):
        raise SourceError(
            f"package {source.name!r} is installed as {version}, "
            f"which does not satisfy {source.versions}",
            hint="A process can use only one version of a package: change the installed one, "
            "or the versions in 'source'",
        )
    by_id = {point.module_id: point for point in points}
    chosen = by_id.get(module_id) or (points[0] if len(points) == 1 else None)
    target = chosen.entry_point if chosen else None
    if target is None and not points:
        target = installed.by_convention(module_id)
    if target is None:
        offers = f"only {', '.join(sorted(by_id))}" if by_id else "no modules"
        raise SourceError(f"package {source.name!r} provides {offers}, not {module_id!r}")
    name = chosen.distribution if chosen else source.name
    return ResolvedSource(
        "package", f"{name} {version}", entry_point=target, distribution=name, version=version
    )
