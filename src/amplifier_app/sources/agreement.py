"""One process holds one version of a package: whether the modules of a session can share theirs.

Each module has what it requires in a folder of its own, so two of them may have one package in two
versions. Then versions are looked for that all of them can live with, before anything is
mounted; if there are none, the modules and their requirements are named.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from amplifier_app.sources.dependencies import DependencyCache, distributions, required_by
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.installed import normalised
from amplifier_app.sources.resolved import ResolvedSource


class _Use(NamedTuple):
    """Who has which version of a distribution, and why if that is known."""

    who: str
    version: str
    why: str


def agree(
    sources: Mapping[str, ResolvedSource],
    cache: DependencyCache,
    *,
    locked: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Give modules versions of their requirements that they can share, where they cannot yet.

    Args:
        sources: The modules by name; their `import_paths` may be changed.
        cache: Where requirements are installed.
        locked: Whether the versions are given, so that none may be changed.
        stop: When set, what runs for it ends.

    Raises:
        SourceError: There are no such versions.
        Stopped: `stop` was set.
    """
    if not any(source.import_paths for source in sources.values()):
        return
    in_use = _in_use(cache)
    conflict = _conflict(sources, in_use)
    if conflict is None:
        return
    if locked:
        raise _told(*conflict)
    movable = [one for one in sources.values() if one.layout is not None and one.import_paths]
    fixed = {**in_use, **{name: use.version for name, use in _modules(sources)}}
    layouts = [one.layout for one in movable if one.layout is not None]
    try:
        agreed = cache.agree(layouts, fixed=fixed, stop=stop)
    except SourceError as error:
        if "No solution found" not in error.message:
            raise
        raise _told(*conflict) from error
    for source, layout in zip(movable, layouts, strict=True):
        pins = {**agreed, **fixed}
        folder = cache.folder_for(layout, root=source.root, pins=pins, stop=stop)
        source.import_paths = () if folder is None else (folder,)
    conflict = _conflict(sources, in_use)
    if conflict is not None:
        raise _told(*conflict)


def _conflict(
    sources: Mapping[str, ResolvedSource], in_use: Mapping[str, str]
) -> tuple[str, list[_Use]] | None:
    """A distribution that is there in several versions, with one use of each."""
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
    return None


def _modules(sources: Mapping[str, ResolvedSource]) -> Iterator[tuple[str, _Use]]:
    """The distributions that are modules themselves."""
    for who, source in sources.items():
        if source.distribution is not None and source.version is not None and not source.installed:
            yield normalised(source.distribution), _Use(who, source.version, "is that itself")


def _told(name: str, uses: list[_Use]) -> SourceError:
    lines = [f"  {use.who} {use.why}, and has {use.version}" for use in uses]
    return SourceError(
        f"{name} is needed in different versions, and one process can hold only one:\n"
        + "\n".join(lines),
        hint="use versions of the modules that agree, or leave one of them out",
    )


def _why(source: ResolvedSource, name: str) -> str:
    """Why a module has a distribution: its own requirement, or that of something it requires."""
    for text in required_by(source.layout) if source.layout is not None else ():
        if _requirement_name(text) == name:
            return f"requires {text}"
    from importlib.metadata import distributions as metadata_of

    for folder in source.import_paths:
        for found in metadata_of(path=[str(folder)]):
            for text in found.requires or ():
                if _requirement_name(text) == name:
                    wanted = text.partition(";")[0].strip()
                    return f"requires {found.name}, which requires {wanted}"
    return "requires it"


def _requirement_name(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return normalised(Requirement(text).name)
    except InvalidRequirement:
        # A form that only uv knows.
        return ""


def _in_use(cache: DependencyCache) -> dict[str, str]:
    """Name → version of what other sessions of this process have from the cache."""
    root = cache.root.absolute()
    found = distributions(folder for folder in sys.path if Path(folder).is_relative_to(root))
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
            found[distribution] = version
    return found


def _packages(home: Path) -> dict[str, tuple[str, str]]:
    """Top-level package → name and version of the distribution that has it."""
    versions = distributions([str(home)])
    found: dict[str, tuple[str, str]] = {}
    for record in home.glob("*.dist-info/RECORD"):
        name = normalised(record.parent.name.partition("-")[0])
        for line in record.read_text(encoding="utf-8", errors="replace").splitlines():
            top = line.partition(",")[0].partition("/")[0].partition(".")[0]
            if name in versions:
                found.setdefault(top, (name, versions[name]))
    return found
