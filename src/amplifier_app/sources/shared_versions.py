"""Finds package versions that the modules of a session can share, as a process can use only one.

Each module has its requirements in a folder of its own, so two modules may have different
versions of one package. Before anything is mounted, versions are resolved that suit all of them;
if there are none, the error names the modules and their requirements.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from amplifier_app.base.installed import normalised
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements.dependencies import DependencyCache
from amplifier_app.sources.requirements.fixed_versions import read_requirements
from amplifier_app.sources.requirements.layout import required_by
from amplifier_app.sources.requirements.names import (
    PREFERRED,
    distributions,
    recorded_files,
    requirement_name,
)
from amplifier_app.sources.resolved import ResolvedSource
from amplifier_support.named_tuple import NamedTuple


class _Use(NamedTuple):
    """Who uses which version of a distribution, and why."""

    who: str
    version: str
    why: str


def agree(
    sources: Mapping[str, ResolvedSource], cache: DependencyCache, *, locked: bool = False
) -> None:
    """Resolve conflicts between the requirements of modules by versions that suit all of them.

    Args:
        sources: The modules by name; their `import_paths` may be changed.
        cache: The cache of installed requirements.
        locked: Whether the versions are locked and must not change.

    Raises:
        SourceError: No such versions exist.
        Stopped: The caller was cancelled.
    """
    _refuse_imported(sources, cache)
    in_use = _in_use(cache)
    conflict = _conflict(sources, in_use)
    if conflict is None:
        return
    if locked:
        raise _conflict_error(*conflict)
    movable = [
        candidate
        for candidate in sources.values()
        if candidate.layout is not None and candidate.import_paths
    ]
    fixed = {**in_use, **{name: use.version for name, use in _modules(sources)}}
    layouts = [candidate.layout for candidate in movable if candidate.layout is not None]
    try:
        agreed = cache.agree(layouts, fixed=fixed)
    except SourceError as error:
        if "No solution found" not in error.message:
            raise
        raise _conflict_error(*conflict) from error
    for source, layout in zip(movable, layouts, strict=True):
        pins = {**agreed, **fixed}
        folder = cache.folder_for(layout, root=source.root, pins=pins)
        source.import_paths = () if folder is None else (folder,)
    conflict = _conflict(sources, in_use)
    if conflict is not None:
        raise _conflict_error(*conflict)


def _conflict(
    sources: Mapping[str, ResolvedSource], in_use: Mapping[str, str]
) -> tuple[str, list[_Use]] | None:
    """A distribution in use in several versions, with one use of each."""
    uses: dict[str, dict[str, _Use]] = {}
    for name, version in in_use.items():
        uses[name] = {version: _Use("this process", version, "has imported it already")}
    for name, use in _modules(sources):
        uses.setdefault(name, {}).setdefault(use.version, use)
    for who, source in sources.items():
        for name, version in source.requirements.items():
            use = _Use(who, version, _why(source, name))
            uses.setdefault(name, {}).setdefault(version, use)
    for name, by_version in uses.items():
        if len(by_version) > 1:
            return name, list(by_version.values())
    return _preferred_conflict(sources)


def _preferred_conflict(sources: Mapping[str, ResolvedSource]) -> tuple[str, list[_Use]] | None:
    """A distribution that would precede the environment but does not suit another module."""
    preferred = {
        name: (who, version)
        for who, source in sources.items()
        for name, version in distributions(map(str, source.preferred_paths)).items()
    }
    for who, source in sources.items() if preferred else ():
        own = source.requirements
        for name, text, why in _from_environment(source):
            holder, version = preferred.get(name, ("", ""))
            specifier = Requirement(text).specifier
            if not holder or name in own or specifier.contains(version, prereleases=True):
                continue
            present = metadata.version(name)
            mine = _Use(holder, version, _why(sources[holder], name))
            return name, [mine, _Use(who, present, why)]
    return None


def _from_environment(source: ResolvedSource) -> Iterator[tuple[str, str, str]]:
    """Name, requirement and reason of what a module requires, directly or via the environment."""
    waiting = [(text, f"requires {text}") for text in _direct(source)]
    seen: set[str] = set()
    while waiting:
        text, why = waiting.pop()
        name = requirement_name(text)
        yield name, text, why
        if name and name not in seen:
            seen.add(name)
            waiting += [
                (requirement, f"requires {name}, which requires {requirement}")
                for requirement in read_requirements(name)
            ]


def _refuse_imported(sources: Mapping[str, ResolvedSource], cache: DependencyCache) -> None:
    """Refuse other versions of packages that this process has imported from the environment.

    Raises:
        SourceError: A module has another version of such a package.
    """
    root = str(cache.root.absolute())
    for who, source in sources.items():
        for folder in source.preferred_paths:
            for top, (name, version) in _packages(folder).items():
                file = getattr(sys.modules.get(top), "__file__", None)
                if isinstance(file, str) and not file.startswith(root):
                    present = cache.environment().get(name, "another version")
                    ours = _Use("this process", present, "has imported it already")
                    raise _conflict_error(name, [_Use(who, version, _why(source, name)), ours])


def _modules(sources: Mapping[str, ResolvedSource]) -> Iterator[tuple[str, _Use]]:
    """The distributions that contain the modules themselves."""
    for who, source in sources.items():
        if source.distribution is not None and source.version is not None and not source.installed:
            yield normalised(source.distribution), _Use(who, source.version, "is this distribution")


def _conflict_error(name: str, uses: list[_Use]) -> SourceError:
    lines = [f"  {use.who} {use.why} (version {use.version})" for use in uses]
    return SourceError(
        f"{name} is required in different versions, but a process can use only one:\n"
        + "\n".join(lines),
        hint="Use compatible versions of the modules, or remove one of them",
    )


def _why(source: ResolvedSource, name: str) -> str:
    """Why a module uses a distribution: a direct or a transitive requirement."""
    for text in _direct(source):
        if requirement_name(text) == name:
            return f"requires {text}"
    for folder in (*source.preferred_paths, *source.import_paths):
        for distribution in metadata.distributions(path=[str(folder)]):
            for text in distribution.requires or ():
                if requirement_name(text) == name:
                    required = text.partition(";")[0].strip()
                    return f"requires {distribution.name}, which requires {required}"
    return "requires it"


def _direct(source: ResolvedSource) -> list[str]:
    """The requirements of a module; those that the plan adds come first."""
    layout = source.layout
    if layout is None:
        return []
    return [*(addition.written for addition in layout.added), *required_by(layout)]


def _in_use(cache: DependencyCache) -> dict[str, str]:
    """Name → version of what other sessions of this process use from the cache."""
    root = cache.root.absolute()
    versions = distributions(folder for folder in sys.path if Path(folder).is_relative_to(root))
    homes: dict[Path, dict[str, tuple[str, str]]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not isinstance(file, str) or not Path(file).is_relative_to(root):
            continue
        home = root / Path(file).relative_to(root).parts[0]
        if home not in homes:
            homes[home] = _packages(home)
        if name in homes[home]:
            distribution, version = homes[home][name]
            versions[distribution] = version
    return versions


def _packages(home: Path) -> dict[str, tuple[str, str]]:
    """Top-level package → name and version of its distribution."""
    versions = distributions([str(home), str(home / PREFERRED)])
    packages: dict[str, tuple[str, str]] = {}
    records = (*home.glob("*.dist-info/RECORD"), *home.glob(f"{PREFERRED}/*.dist-info/RECORD"))
    for record in records:
        name = normalised(record.parent.name.partition("-")[0])
        for file in recorded_files(record.parent) if name in versions else ():
            top = file.partition("/")[0].partition(".")[0]
            packages.setdefault(top, (name, versions[name]))
    return packages
