"""What to validate: a path, a source, or the id of an available module."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.base import installed
from amplifier_app.base.errors import UsageError
from amplifier_app.sources.requirements.layout import Layout
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_core.module_sources import ModuleNotFoundError
from amplifier_support.did_you_mean import did_you_mean

if TYPE_CHECKING:
    from amplifier_app.sources.resolved import ResolvedSource


class Subject(NamedTuple):
    """A module to validate.

    Attributes:
        shown: Its name in the report.
        path: Its folder or file; None if it is installed.
        layout: How it is imported, if already known.
    """

    shown: str
    path: Path | None
    layout: Layout | None = None


def find_subject(text: str, resolver: Callable[[], AppModuleSourceResolver]) -> Subject:
    """The module that a command-line argument refers to.

    Args:
        text: A folder or file, a source as in a plan, or the id of a module.
        resolver: Returns the resolver of ids; called only for an id.

    Raises:
        UsageError: There is no such module.
        SourceError: The source is unavailable.
    """
    path = Path(os.path.expanduser(text)).absolute()
    if path.is_dir() or path.suffix == ".py":
        _refuse_missing(path, text)
        return Subject(str(path), path)
    if path.exists():
        return _fetch(str(path))
    if "://" in text:
        return _fetch(text)
    if os.sep in text or text.startswith(("~", ".")):
        _refuse_missing(path, text)
    if re.search(r"[=<>~!\[]", text):
        return _fetch(text)
    try:
        found = resolver().resolve(text)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{text!r} is neither a folder or file here nor a known module id",
            hint=did_you_mean(text, installed.bundled_modules(), 0.7)
            or "Pass its folder, a source such as git+https://…, or an id from "
            "'amplifier module list'.",
        ) from error
    return _subject_of(found, f"{text} ({found.text})", text)


def _refuse_missing(path: Path, text: str) -> None:
    if path.exists():
        return
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    nearby = [str(Path(text).parent / name) for name in siblings]
    raise UsageError(
        f"no such folder or file: {path}", hint=did_you_mean(str(Path(text)), nearby, 0.7)
    )


def _fetch(source: str) -> Subject:
    name = _name_in(source)
    # Use exactly this source, without any override for a module of that name.
    found = AppModuleSourceResolver(environ={}).resolve(name, source_hint=source)
    return _subject_of(found, found.text, name)


def _subject_of(found: ResolvedSource, shown: str, name: str) -> Subject:
    if not found.installed:
        return Subject(shown, found.root, found.layout)
    layout = _installed_layout(name, found.entry_point or "")
    of = (found.distribution, found.version) if found.distribution and found.version else None
    if found.layout is not None:
        added, dependencies = found.layout.added, found.layout.dependencies
        layout = layout._replace(added=added, dependencies=dependencies)
    return Subject(shown, None, layout._replace(distribution=of, installed=True))


def _name_in(source: str) -> str:
    """The name of a repository, archive or package, the closest thing to an id."""
    name = re.split(r"[/:]", source.partition("#")[0].rstrip("/"))[-1]
    match = re.match(r"[A-Za-z0-9_-]+", name)
    return match[0] if match else "module"


def _installed_layout(module_id: str, entry_point: str) -> Layout:
    """The layout of a package on `sys.path`, found without importing it."""
    target = entry_point.partition(":")[0]
    top, *inner = target.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise UsageError(f"{module_id} is installed as {target}, but that package was not found")
    file = Path(spec.origin)
    package = file.parent if file.name == "__init__.py" else file
    if inner and package.is_dir():
        folder = package.joinpath(*inner)
        package = folder if folder.is_dir() else folder.with_suffix(".py")
    return Layout(Path(), entry_point, package, module_id=module_id)
