"""What is to be validated: a path, a source text, or the id of a module that is there."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from amplifier_app.errors import UsageError
from amplifier_app.sources.layout import Layout
from amplifier_core.module_sources import ModuleNotFoundError

if TYPE_CHECKING:
    from amplifier_app.sources.resolver import AppModuleSourceResolver


class Subject(NamedTuple):
    """A module to be validated.

    Attributes:
        shown: What a report calls it.
        path: Its folder or file; None for what is installed.
        layout: How it is imported, if that is known already.
    """

    shown: str
    path: Path | None
    layout: Layout | None = None


def find_subject(text: str, resolver: AppModuleSourceResolver) -> Subject:
    """What a person means by a text on the command line.

    Args:
        text: A folder or file, a source as in a plan, or the id of a module.
        resolver: Where sources and ids are looked up.

    Raises:
        UsageError: There is nothing of that name.
        SourceError: The source cannot be had.
    """
    path = Path(text).expanduser()
    if path.exists():
        return Subject(str(path.absolute()), path.absolute())
    if "://" in text:
        found = resolver.resolve(_name_in(text), source_hint=text)
        return Subject(found.text, found.root)
    if os.sep in text or text.startswith(("~", ".")):
        raise UsageError(f"there is no folder or file {path.absolute()}", hint=_near(path))
    try:
        found = resolver.resolve(text)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"there is no folder or file {text!r} here, and no module of that id",
            hint="give its folder, a source such as git+https://…, or an id that "
            "'amplifier module list' shows",
        ) from error
    shown = f"{text} ({found.text})"
    if not found.installed:
        return Subject(shown, found.root)
    return Subject(shown, None, _installed_layout(text, found.entry_point or ""))


def _name_in(source: str) -> str:
    """The name of a repository or archive, which is what comes closest to an id."""
    address = source.partition("#")[0].rstrip("/")
    name = re.split(r"[/:]", address)[-1].partition("@")[0]
    return re.sub(r"\.(git|whl|zip|tar|tgz|gz)$", "", name) or "module"


def _near(path: Path) -> str | None:
    from difflib import get_close_matches

    try:
        names = os.listdir(path.absolute().parent)
    except OSError:
        return None
    near = get_close_matches(path.name, names, n=1)
    return f"Did you mean '{path.parent / near[0]}'?" if near else None


def _installed_layout(module_id: str, entry_point: str) -> Layout:
    """The layout of a package on `sys.path`, found without importing anything of it."""
    target = entry_point.partition(":")[0]
    top, *inner = target.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise UsageError(f"{module_id} is installed as {target}, which cannot be found")
    file = Path(spec.origin)
    package = file.parent if file.name == "__init__.py" else file
    if inner and package.is_dir():
        folder = package.joinpath(*inner)
        package = folder if folder.is_dir() else folder.with_suffix(".py")
    return Layout(Path(), entry_point, package, module_id=module_id)
