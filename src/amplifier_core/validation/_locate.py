"""Find the module under test by the surrounding folders, without importing anything."""

import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["NO_MODULE", "LocatedModule", "kind_of", "locate_around", "locate_given", "locate_in"]

_KIND_BY_WORD: Final = {
    "provider": "provider",
    "tool": "tool",
    "hook": "hook",
    "hooks": "hook",
    "loop": "orchestrator",
    "orchestrator": "orchestrator",
    "context": "context",
}
_NAME: Final = re.compile(r"amplifier[-_]module[-_]([a-z]+)([-_]|$)")
_DECLARATION: Final = re.compile(r"^__amplifier_module_type__\s*(?::.*)?=\s*['\"](\w+)['\"]", re.M)


NO_MODULE: Final = "no module under test: pass --module-path, or declare it in pyproject.toml under amplifier.modules"


class LocatedModule(NamedTuple):
    """A module's package and its kind, if known."""

    path: Path
    kind: str | None


def locate_given(path: Path) -> LocatedModule:
    """The module at ``path``: a package, a file, or a project folder that contains a package."""
    if path.is_dir() and not (path / "__init__.py").is_file():
        path = _package_in(path) or _only_package_in(path) or path
    return LocatedModule(path, kind_of(path))


def locate_around(file: Path) -> LocatedModule | None:
    """The package of the nearest project that contains ``file``, if any.

    A project is a folder ``amplifier-module-*``, or one whose ``pyproject.toml`` declares one module.
    """
    for folder in file.parents:
        is_named = folder.name.startswith("amplifier-module-")
        package = (_package_in(folder) if is_named else None) or _package_declared_in(folder)
        if package is not None:
            return LocatedModule(package, kind_of(package))
    return None


def locate_in(folder: Path) -> LocatedModule | None:
    """The module whose project folder is ``folder`` or contains it."""
    located = locate_around(folder / "any")
    if located is not None:
        return located
    package = _package_in(folder, "amplifier_module_")
    return None if package is None else LocatedModule(package, kind_of(package))


def kind_of(package: Path) -> str | None:
    """Kind of the module, from the package's name, its declaration, or the names of parent folders."""
    return (
        _kind_by_name(package.name)
        or _declared_kind(package)
        or next(filter(None, (_kind_by_name(folder.name) for folder in package.parents)), None)
    )


def _kind_by_name(name: str) -> str | None:
    match = _NAME.match(name)
    return None if match is None else _KIND_BY_WORD.get(match[1])


def _declared_kind(package: Path) -> str | None:
    file = package / "__init__.py" if package.is_dir() else package
    if not file.is_file():
        return None
    match = _DECLARATION.search(file.read_text(encoding="utf-8", errors="replace"))
    return None if match is None else _KIND_BY_WORD.get(match[1])


def _package_in(folder: Path, *prefixes: str) -> Path | None:
    """The package whose name starts with one of `prefixes`; earlier prefixes take precedence.

    A project may contain other packages as well, so the full prefix comes before the short one.
    """
    packages = _packages_in(folder)
    for prefix in prefixes or ("amplifier_module_", "amplifier_"):
        for path in packages:
            if path.name.startswith(prefix):
                return path
    return None


def _package_declared_in(folder: Path) -> Path | None:
    """The package of the only module that the project in ``folder`` declares."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        (target,) = project["entry-points"]["amplifier.modules"].values()
        name = target.partition(":")[0].partition(".")[0]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        # No project, an invalid one, or not exactly one module; not reported, as it is not required.
        return None
    found = [package for package in _packages_in(folder) if package.name == name]
    return found[0] if found else None


def _only_package_in(folder: Path) -> Path | None:
    packages = [path for path in _packages_in(folder) if path.name not in ("tests", "test")]
    return packages[0] if len(packages) == 1 else None


def _packages_in(folder: Path) -> list[Path]:
    """Packages directly in ``folder`` or in its ``src`` folder, sorted by name."""
    files = [*folder.glob("*/__init__.py"), *(folder / "src").glob("*/__init__.py")]
    return sorted((file.parent for file in files), key=lambda path: path.name)
