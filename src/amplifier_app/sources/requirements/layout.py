"""Finds the module in a source folder: what goes on `sys.path` and what to import.

The first match wins: the entry point of a distribution in the folder (an unpacked wheel); the
entry point that `pyproject.toml` declares in the group `amplifier.modules`; the folder itself as
a package; a package or file with a conventional name (`amplifier_module_<id>`, `<id>`), at the
top or in `src/`; the only package or file with a `mount`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amplifier_app.base.installed import OURS
from amplifier_app.plan.source_spec import GitSource, check_requirement, parsed_requirement
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.requirements.names import requirement_name
from amplifier_core.module_sources import ENTRY_POINT_GROUP
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from amplifier_app.plan.requirements import PlanRequirement
    from amplifier_app.sources.fetch.git import Checkout

_TARGET = r"[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?"
_NOT_MODULES = {"tests", "test", "docs", "examples", "conftest", "setup", "noxfile"}

VENDORED = ".dependencies"
"""The folder of vendored requirements in a module's own folder."""


class Addition:
    """A requirement that the plan adds to one module, ready to install.

    Args:
        requirement: The entry in the plan.
        fetch: Fetches its repository.
    """

    def __init__(
        self, requirement: PlanRequirement, fetch: Callable[[GitSource], Checkout]
    ) -> None:
        self.written = requirement.written
        self.at = requirement.at
        self._text = requirement.text
        self._fetch = fetch

    @cached_property
    def checkout(self) -> Checkout | None:
        """The checkout of its repository, fetched on first use; None for an index package."""
        source = check_requirement(self._text)
        return self._fetch(source) if source is not None else None

    @property
    def commit(self) -> str | None:
        """The commit of its repository; None for an index package, or if nothing was fetched."""
        known: Checkout | None = self.__dict__.get("checkout")
        return known.commit if known is not None else None

    @property
    def exact(self) -> str:
        """The requirement, with the commit of its repository."""
        return f"{self.written} # {self.checkout.commit}" if self.checkout else self._text

    def line(self, folder: str) -> str:
        """The line for uv's requirements file.

        Args:
            folder: URL of a copy of the repository's folder.
        """
        parsed = parsed_requirement(self._text)
        if parsed.url is None:
            return self._text
        parsed.url = folder
        return str(parsed)


class Layout(NamedTuple):
    """The way to import a source folder.

    Attributes:
        folder: What goes on `sys.path`; the package itself if `entry_point` is None.
        entry_point: `"package:mount"`, or None for a folder that is itself the package.
        package: The folder or file to import.
        dependencies: The requirements in `pyproject.toml` or the distribution.
        project_file: The `pyproject.toml`, if there is one.
        dynamic: Whether dependencies are computed when the project is built.
        module_id: The module's id in `pyproject.toml` or the distribution.
        distribution: Name and version of the distribution in the folder.
        installed: Whether it is part of the environment.
        added: Requirements that the plan adds.
    """

    folder: Path
    entry_point: str | None
    package: Path
    dependencies: tuple[str, ...] = ()
    project_file: Path | None = None
    dynamic: bool = False
    module_id: str | None = None
    distribution: tuple[str, str] | None = None
    installed: bool = False
    added: tuple[Addition, ...] = ()


def find_layout(root: Path, module_id: str | None = None, *, extras: Iterable[str] = ()) -> Layout:
    """Find the layout of a source.

    Args:
        root: A folder, or a single Python file.
        module_id: The module's id in the plan; None if there is no plan.
        extras: The requested extras of a distribution.

    Raises:
        SourceError: There is no module, or it is ambiguous.
    """
    if root.is_file():
        if root.suffix != ".py":
            raise SourceError(f"{root} is neither a folder nor a Python file")
        return Layout(root.parent, f"{root.stem}:mount", root)
    if not root.is_dir():
        raise SourceError(f"folder {root} does not exist", hint="Check the module's 'source'")
    if any(root.glob("*.dist-info")):
        layout = _of_distribution(root, module_id, extras)
        if layout is not None:
            return layout
    project_file = root / "pyproject.toml"
    project = read_project(project_file) if project_file.is_file() else {}
    _check_python(project.get("requires-python"), str(root), str(project_file))
    declared = _declared(project, module_id, project_file)
    if declared is None:
        layout = _from_files(root, module_id)
    else:
        layout = _from_target(root, declared[1], project_file)._replace(module_id=declared[0])
    if not project:
        return layout
    return layout._replace(
        dependencies=_texts(project.get("dependencies")),
        project_file=project_file,
        dynamic="dependencies" in _texts(project.get("dynamic")),
    )


def read_project(file: Path) -> dict[str, Any]:
    """The table `project` of a `pyproject.toml`.

    Raises:
        SourceError: The file is invalid.
    """
    import tomllib

    try:
        with file.open("rb") as stream:
            table = tomllib.load(stream).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{file} is not valid TOML: {error}") from error
    if not isinstance(table, dict):
        raise SourceError(f"'project' in {file} is not a table")
    return cast("dict[str, Any]", table)


def _texts(value: Any) -> tuple[str, ...]:
    values: list[Any] = value if isinstance(value, list) else []
    return tuple(item for item in values if isinstance(item, str))


def _check_python(specifier: Any, who: str, file: str) -> None:
    if not isinstance(specifier, str):
        return
    simple = re.fullmatch(r">=\s*3\.(\d+)(?:\.0)?", specifier.strip())
    if simple:
        fits = sys.version_info >= (3, int(simple[1]))
    else:
        # Only for the unusual forms: the library takes longer to import than a module to load.
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            fits = SpecifierSet(specifier).contains(".".join(map(str, sys.version_info[:3])))
        except InvalidSpecifier as error:
            raise SourceError(f"'requires-python' in {file} is not valid: {error}") from error
    if not fits:
        running = ".".join(map(str, sys.version_info[:3]))
        raise SourceError(f"{who} requires Python {specifier}, but this is {running}")


# -- by entry point ----------------------------------------------------------------------


def _declared(project: dict[str, Any], module_id: str | None, file: Path) -> tuple[str, str] | None:
    """The id and the entry point of the requested module, if the project declares any."""
    groups: Any = project.get("entry-points", {})
    declared: Any = groups.get(ENTRY_POINT_GROUP) if isinstance(groups, dict) else None
    if not isinstance(declared, dict) or not declared:
        return None
    return _choose_module(cast("dict[str, Any]", declared), module_id, file)


def _choose_module(
    targets: Mapping[str, Any], module_id: str | None, file: Path
) -> tuple[str, str]:
    """The id and the entry point of one of several modules."""
    if module_id is not None and module_id in targets:
        name = module_id
    elif len(targets) == 1:
        # The only module in the project: the plan may call it by another id.
        name = next(iter(targets))
    else:
        reason = f"none named {module_id!r}" if module_id else "and none was selected"
        packages = sorted({str(target).partition(":")[0] for target in targets.values()})
        raise SourceError(
            f"{file} declares several modules, {reason}: {', '.join(sorted(targets))}",
            hint="Select one with 'module:'"
            if module_id
            else f"Give the folder of one of these packages instead: {', '.join(packages)}",
        )
    target = targets[name]
    if not isinstance(target, str) or not re.fullmatch(_TARGET, target):
        raise SourceError(
            f"the entry point {target!r} in {file} is not of the form 'package:mount'"
        )
    return name, target


def _from_target(root: Path, target: str, project_file: Path) -> Layout:
    name, _, attribute = target.partition(":")
    top = name.partition(".")[0]
    for folder in (root, root / "src"):
        package = _importable(folder, top)
        if package is not None:
            return Layout(folder, f"{name}:{attribute or 'mount'}", package)
    if (root / "__init__.py").is_file() and name == top and attribute in ("", "mount"):
        # The project file is inside the package that it names.
        return Layout(root, None, root)
    raise SourceError(
        f"{project_file} refers to '{target}', but neither {root} nor its src/ has "
        f"{top}/ or {top}.py"
    )


def _importable(folder: Path, name: str) -> Path | None:
    if (folder / name).is_dir() and any((folder / name).glob("*.py")):
        return folder / name
    file = folder / f"{name}.py"
    return file if file.is_file() else None


def _of_distribution(root: Path, module_id: str | None, extras: Iterable[str]) -> Layout | None:
    """The layout of the unpacked or installed wheel in `root`; None if there is none, or more than one.

    Raises:
        SourceError: Its metadata is invalid, or it has no module.
    """
    # Slow to import, and most modules are not wheels.
    from importlib.metadata import Distribution

    folders = sorted(root.glob("*.dist-info"))
    if len(folders) != 1 or not (folders[0] / "METADATA").is_file():
        return None
    wheel = Distribution.at(folders[0])
    facts = {name: wheel.metadata[name] for name in wheel.metadata}
    name, version = facts.get("Name"), facts.get("Version")
    if not name or not version:
        raise SourceError(f"{folders[0].name} has no name and version")
    requirements = tuple(_needed_requirements(wheel.requires or (), tuple(extras), folders[0].name))
    file = root / f"{name}-{version}.dist-info"
    _check_python(facts.get("Requires-Python"), f"{name} {version}", f"{file.name}/METADATA")
    modules = {
        point.name: point.value for point in wheel.entry_points.select(group=ENTRY_POINT_GROUP)
    }
    if modules:
        chosen, target = _choose_module(modules, module_id, file)
        layout = _from_target(root, target, file)._replace(module_id=chosen)
    else:
        layout = _from_files(root, module_id)
    return layout._replace(dependencies=requirements, distribution=(name, version))


def _needed_requirements(
    requires: Iterable[str], extras: tuple[str, ...], where: str
) -> Iterable[str]:
    """The requirements that apply in this environment, without their markers."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise SourceError(f"{where} has an invalid requirement: {text!r}") from error
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield str(requirement)


# -- by what is there --------------------------------------------------------------------


def _from_files(root: Path, module_id: str | None) -> Layout:
    if (root / "__init__.py").is_file():
        return Layout(root, None, root)
    folders = [folder for folder in (root, root / "src") if folder.is_dir()]
    if module_id is not None:
        plain = re.sub(r"\W", "_", module_id)
        for name in (f"amplifier_module_{plain}", plain):
            for folder in folders:
                package = _importable(folder, name)
                if package is not None:
                    return Layout(folder, f"{name}:mount", package)
    candidates = [(folder, mountable) for folder in folders for mountable in _mountables(folder)]
    conventional = [pair for pair in candidates if pair[1].name.startswith("amplifier_module_")]
    chosen = conventional or candidates
    if len(chosen) == 1:
        folder, package = chosen[0]
        return Layout(folder, f"{package.stem}:mount", package)
    if chosen:
        names = ", ".join(path.name for _, path in chosen)
        raise SourceError(
            f"{root} has several modules and no pyproject.toml that declares one: {names}",
            hint=f'declare it under [project.entry-points."{ENTRY_POINT_GROUP}"]',
        )
    inside = [file.parent.name for file in sorted(root.glob("*/pyproject.toml")) if _declares(file)]
    if inside:
        raise SourceError(
            f"no module at the top of the source; folders with modules: {', '.join(inside)}",
            hint=f"Add '#subdirectory={inside[0]}' to a git source, or '/{inside[0]}' to a path",
        )
    raise SourceError(
        f"no module in {root}: none of its packages and files has a mount function",
        hint="Define 'async def mount(coordinator, config)' in a package, and declare it in "
        f'pyproject.toml under [project.entry-points."{ENTRY_POINT_GROUP}"]',
    )


def _declares(project_file: Path) -> bool:
    text = project_file.read_text(encoding="utf-8", errors="replace")
    return f'"{ENTRY_POINT_GROUP}"' in text


def _mountables(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.stem in _NOT_MODULES or not path.stem.isidentifier():
            continue
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and file.is_file() and _has_mount(file):
            yield path


def _has_mount(file: Path) -> bool:
    text = file.read_text(encoding="utf-8", errors="replace")
    pattern = r"^(?:async )?def mount\b|^(?:from .* )?import .*\bmount\b|^mount\s*="
    return re.search(pattern, text, re.MULTILINE) is not None


def vendored_in(root: Path | None) -> Path | None:
    """Return the folder of vendored requirements in a module's own folder; None if there is none."""
    folder = root / VENDORED if root is not None else None
    return folder if folder is not None and folder.is_dir() else None


def requires_nothing(layout: Layout, root: Path | None) -> bool:
    """Return True if a module needs nothing but Amplifier: no requirements, none from the plan, none vendored."""
    if layout.dynamic or layout.added or required_by(layout):
        return False
    return vendored_in(root) is None


def required_by(layout: Layout) -> list[str]:
    """The requirements of a module, except those that Amplifier itself provides."""
    return [text for text in layout.dependencies if requirement_name(text) not in OURS]


def read_name(layout: Layout) -> str:
    """The name of a module in messages."""
    if layout.added:
        return layout.module_id or layout.package.stem
    if layout.distribution:
        return " ".join(layout.distribution)
    return str(layout.project_file or layout.folder)
